"""Steps with labels: where a process reward model predicts, and what is said of each bad row."""

import json

import pytest
from tests.libs.data.learned.families import renderer_of

from rlhf_core.errors import DataError
from rlhf_data import StepLabelColumns
from rlhf_testing.errors import has_code

ROW = {"prompt": "1+1+1?\n", "completions": ["1+1=2", "2+1=4"], "labels": [True, False]}


def test_the_token_behind_each_step_is_marked_with_its_label(load, shown):
    rows = load(StepLabelColumns(), [ROW])

    assert shown(rows, 0) == "1+1+1?\n1+1=2[\n]2+1=4[\n]"
    assert rows.columns.turn_rewards.tolist() == [1.0, 0.0]
    assert rows.columns.turn_actions.tolist() == [1, 1]


@pytest.mark.parametrize("labels", ["[true, false]", ["1", "0"], ["true", "False"], "[1, 0]"])
def test_steps_and_labels_may_be_json_text_as_in_cells_of_csv(load, shown, labels):
    row = {**ROW, "completions": json.dumps(ROW["completions"]), "labels": labels}

    rows = load(StepLabelColumns(), [row])

    assert shown(rows, 0) == "1+1+1?\n1+1=2[\n]2+1=4[\n]"
    assert rows.columns.turn_rewards.tolist() == [1.0, 0.0]


def test_a_text_with_marks_gives_the_same(load, shown):
    columns = StepLabelColumns(text_key="text", separator="#*")

    rows = load(columns, [{"text": "1+1+1?\n1+1=2 #*2+1=4 #* So 4.", "labels": [1, 0.25]}])

    assert shown(rows, 0) == "1+1+1?\n1+1=2 #[*]2+1=4 #[*] So 4."
    assert rows.columns.turn_rewards.tolist() == [1.0, 0.25]


def test_steps_of_a_chat_are_marked_in_the_answer(load, shown):
    columns = StepLabelColumns(chat=True, separator="<eos>")

    rows = load(columns, [{**ROW, "prompt": "1<eos>1?"}])

    assert shown(rows, 0).endswith(
        "1<eos>1?<|im_end|>\n<|im_start|>assistant\n1+1=2[<eos>]2+1=4[<eos>]<|im_end|>\n"
    )


def test_a_separator_of_several_tokens_is_marked_at_its_last(load, shown):
    """A letter of two bytes is two tokens here."""
    columns = StepLabelColumns(separator="ж")

    rows = load(columns, [ROW], family="qwen2", kind="words")

    tokenizer = renderer_of("qwen2", "words").tokenizer
    assert len(tokenizer.encode("ж", add_special_tokens=False)) == 2
    columns = rows.columns
    assert columns.num_actions.tolist() == [2]
    ends = [
        tokenizer.decode(columns.token_ids[: place + 1])
        for place, learned in enumerate(columns.action_mask)
        if learned
    ]
    assert ends == ["1+1+1?\n1+1=2ж", "1+1+1?\n1+1=2ж2+1=4ж"]


def test_labels_behind_the_cut_are_left_out(load, shown):
    rows = load(StepLabelColumns(), [ROW], max_length=14, on_too_long="truncate")

    assert shown(rows, 0) == "1+1+1?\n1+1=2[\n]2"
    assert rows.columns.turn_rewards.tolist() == [1.0]


TEXT = StepLabelColumns(text_key="text", separator="#")
BAD = {
    "counts": (
        StepLabelColumns(),
        {**ROW, "labels": [True]},
        "each of the 2 steps; column 'labels' has 1",
        "data/step-counts",
    ),
    "marks": (
        TEXT,
        {"text": "a#b#c#", "labels": [True, True]},
        "each of the 3 steps; .* has 2",
        "data/step-counts",
    ),
    "no marks": (
        TEXT,
        {"text": "abc", "labels": [True]},
        "each of the 0 steps; .* has 1",
        "data/step-counts",
    ),
    "nothing": (
        StepLabelColumns(),
        {**ROW, "completions": [], "labels": []},
        "a label at least",
        "data/no-steps",
    ),
    "printed labels": (
        StepLabelColumns(),
        {**ROW, "labels": "[True, False]"},
        "'labels': expected a list of labels, got str, which is no JSON; write the list with json",
        "data/wrong-type",
    ),
    "labels of text": (
        StepLabelColumns(),
        {**ROW, "labels": ["+", "-"]},
        "label 1: .* got '\\+'",
        "data/bad-label",
    ),
    "labels out of range": (
        StepLabelColumns(),
        {**ROW, "labels": [1, 2]},
        "label 2: .* got 2",
        "data/bad-label",
    ),
    "labels that are none": (
        StepLabelColumns(),
        {**ROW, "labels": [1, None]},
        "label 2: .* got None",
        "data/bad-label",
    ),
    "one label": (
        StepLabelColumns(),
        {**ROW, "labels": True},
        "a list of labels, got bool",
        "data/wrong-type",
    ),
    "one step": (
        StepLabelColumns(),
        {**ROW, "completions": "a"},
        "a list of steps, got str",
        "data/wrong-type",
    ),
    "steps of numbers": (
        StepLabelColumns(),
        {**ROW, "completions": ["a", 1]},
        "step 2: .* got int",
        "data/wrong-type",
    ),
    "a blank step": (
        StepLabelColumns(),
        {**ROW, "completions": ["a", " "]},
        "step 2 is empty",
        "data/empty",
    ),
    "no steps": (
        StepLabelColumns(),
        {"prompt": "a", "labels": [True]},
        r"--data\.steps_key",
        "data/missing-column",
    ),
    "no labels": (TEXT, {"text": "a#"}, r"--data\.labels_key", "data/missing-column"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_by_file_line_and_reason(load, case):
    columns, row, reason, code = BAD[case]
    good = {**ROW, "text": "a#b#", "labels": [True, True]}

    with pytest.raises(
        DataError,
        match=rf"(?s)data\.train: 1 of 2 rows .*rows\.jsonl:2: .*{reason}",
        check=has_code(code),
    ):
        load(columns, [good, row])


def test_a_separator_that_the_tokenizer_joins_with_the_next_step_is_refused(load):
    """A model would see the beginning of the next step where it judges this one."""
    row = {"prompt": "x", "completions": ["Hi ", " Hello"], "labels": [True, True]}

    with pytest.raises(DataError, match="step 1", check=has_code("data/separator")):
        load(StepLabelColumns(separator="[/INST]"), [row], family="zephyr", kind="bpe")


def test_a_separator_that_the_template_trims_is_refused(load):
    with pytest.raises(
        DataError, match=r"--data\.separator", check=has_code("data/changed-by-the-template")
    ):
        load(StepLabelColumns(chat=True), [ROW], family="llama3")


def test_tools_of_the_prompt_are_shown_or_refused(load):
    row = {
        "prompt": [{"role": "user", "content": "2+3?"}],
        "completions": ["5"],
        "labels": [True],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
    }

    with pytest.raises(
        DataError,
        match=r"tool 1 \(add\): the chat template does not show",
        check=has_code("data/hidden-by-the-template"),
    ):
        load(StepLabelColumns(), [row])
