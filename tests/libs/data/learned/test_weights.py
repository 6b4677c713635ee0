"""Messages that say of themselves whether they are learned: ``weight`` and ``train``."""

import pytest

from rlhf_core.errors import DataError
from rlhf_data import ConversationColumns, LabeledColumns, PairColumns
from rlhf_data.checked.structure import AnyColumns
from rlhf_data.checking import Expectations, check_source
from rlhf_data.rows import PromptFormat
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code

WRONG = {"role": "assistant", "content": "3"}
RIGHT = {"role": "assistant", "content": "2"}
ASKED = {"role": "user", "content": "1+1?"}
SURE = {"role": "user", "content": "Sure?"}
MESSAGES = ConversationColumns(messages_key="messages")
LABELED = LabeledColumns(messages_key="messages")


def chat(**fields):
    """Two questions, of which the first is answered wrong: the answer has these fields."""
    return [ASKED, {**WRONG, **fields}, SURE, RIGHT]


@pytest.mark.parametrize(
    "fields",
    [
        *({"weight": 0}, {"weight": 0.0}, {"train": False}, {"train": 0}, {"loss": False}),
        *({"training": False}, {"train_on_turn": False}, {"trainable": False}, {"loss_mask": 0}),
    ],
)
@pytest.mark.parametrize("family", ["qwen2", "llama3", "deepseek"])
def test_a_message_of_weight_0_is_context(load, shown, fields, family):
    rows = load(MESSAGES, [{"messages": chat(**fields)}, {"messages": chat()}], family=family)

    text, whole = (shown(rows, row, family=family) for row in (0, 1))
    assert rows.columns.num_turns.tolist() == [1, 2]
    assert "3" in text.split("[")[0], "it is read"
    assert text.replace("[", "").replace("]", "") == whole.replace("[", "").replace("]", "")


@pytest.mark.parametrize("fields", [{"weight": 1}, {"weight": 1.0, "train": True}, {"train": True}])
def test_a_message_of_weight_1_is_learned_as_one_that_says_nothing(load, fields):
    rows = load(MESSAGES, [{"messages": chat(**fields)}, {"messages": chat()}]).columns

    assert rows.num_turns.tolist() == [2, 2]
    assert rows.tokens_of(0).tolist() == rows.tokens_of(1).tolist()


def test_others_may_say_that_they_are_context(load):
    rows = load(MESSAGES, [{"messages": [{**ASKED, "weight": 0}, RIGHT]}])

    assert rows.columns.num_turns.tolist() == [1]


BAD = {
    "scaled": (
        chat(weight=0.5),
        r"message 2: expected 0 or 1 as 'weight', got 0\.5",
        "data/weight",
    ),
    "text": (
        chat(train="false"),
        r"message 2: expected true or false as 'train', got 'false'",
        "data/weight",
    ),
    "both": (
        chat(weight=1, train=False),
        r"message 2: 'weight' is 1 and 'train' is False",
        "data/weight",
    ),
    "another measure": (
        chat(loss=2.31),
        r"message 2: expected true or false as 'loss', got 2\.31",
        "data/weight",
    ),
    "nothing": (
        [ASKED, {**WRONG, "weight": 0}],
        'each message of the assistant has "weight" 0, "train" or "loss" false, so nothing of the row is learned',
        "data/nothing-to-learn",
    ),
    "user": (
        [{**ASKED, "train": True}, RIGHT],
        r"message 1: 'train' is True, but only messages of the assistant are learned, and its role is 'user'",
        "data/weight",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_row_that_cannot_be_obeyed_is_bad_by_name(load, case):
    messages, message, code = BAD[case]

    with pytest.raises(DataError, match=rf"rows\.jsonl:2: {message}", check=has_code(code)):
        load(MESSAGES, [{"messages": chat()}, {"messages": messages}])


def test_the_last_answer_alone_may_not_be_of_weight_0(load):
    last = ConversationColumns(messages_key="messages", learn="last")
    messages = [ASKED, RIGHT, SURE, {**RIGHT, "weight": 0}]

    with pytest.raises(DataError, check=has_code("data/nothing-to-learn")):
        load(last, [{"messages": messages}])


def test_rows_without_anything_to_learn_are_found_without_a_run(write_rows):
    path = write_rows([{"messages": chat(weight=0)}, {"messages": [ASKED, {**WRONG, "weight": 0}]}])

    report = check_source(
        open_source(path),
        Expectations(format=PromptFormat(), columns=AnyColumns(messages_key="messages")),
    )

    assert [bad.kind for bad in report.bad] == ["nothing to learn"]


def test_weights_in_what_a_pair_shares_change_nothing(load):
    answer, other = (
        {"role": "assistant", "content": "Yes."},
        {"role": "assistant", "content": "No."},
    )
    plain, weighted = (
        {"chosen": [*chat(**fields)[:3], answer], "rejected": [*chat()[:3], other]}
        for fields in ({}, {"weight": 0})
    )

    rows = load(PairColumns(), [plain, weighted]).columns

    assert rows.tokens_of(2).tolist() == rows.tokens_of(0).tolist()
    assert rows.num_actions[2:].tolist() == rows.num_actions[:2].tolist()


@pytest.mark.parametrize("columns", [PairColumns(), LABELED])
def test_a_judged_answer_is_learned_as_a_whole(load, columns):
    messages = [ASKED, {**RIGHT, "weight": 0}]
    row = {"chosen": messages, "rejected": [ASKED, WRONG], "messages": messages, "label": True}

    with pytest.raises(
        DataError,
        match=r"message 2: it is not to be learned .* judged as a whole",
        check=has_code("data/weight"),
    ):
        load(columns, [row])


def test_of_a_judged_conversation_the_answers_before_are_context(load):
    rows = load(LABELED, [{"messages": chat(weight=0), "label": True}]).columns

    assert rows.num_turns.tolist() == [1]


@pytest.mark.parametrize("fields", [{"weight": 1}, {"train": True}])
def test_an_answer_in_a_prompt_that_is_to_be_learned_is_bad_by_name(load, fields):
    prompt = [ASKED, {**WRONG, **fields}, SURE]

    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:1: message 2 of the prompt: .* the response alone",
        check=has_code("data/weight"),
    ):
        load(ConversationColumns(), [{"prompt": prompt, "response": "2"}])


def test_an_answer_in_a_prompt_of_weight_0_is_context(load):
    rows = load(
        ConversationColumns(),
        [
            {"prompt": [ASKED, {**WRONG, **fields}, SURE], "response": "2"}
            for fields in ({}, {"weight": 0})
        ],
    )

    first, second = (rows.columns.tokens_of(row).tolist() for row in range(2))
    assert first == second


PAIR = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
ROWS = {
    "conversation": (MESSAGES, {"messages": chat()}),
    "response": (ConversationColumns(), {"prompt": "1+1?", "response": "2"}),
    "text": (ConversationColumns(), {"text": "one and one"}),
    "pair": (PairColumns(), PAIR),
    "judged": (LABELED, {"messages": chat(), "label": True}),
}


@pytest.mark.parametrize(
    "field", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"loss": False}]
)
@pytest.mark.parametrize("case", ROWS)
def test_a_row_that_is_not_to_be_learned_is_a_bad_row(load, case, field):
    columns, row = ROWS[case]
    ((name, value),) = field.items()

    with pytest.raises(
        DataError,
        match=rf"rows.jsonl:2: the row has '{name}' {value}, so nothing",
        check=has_code("data/weight"),
    ):
        load(columns, [row, row | field])
    kept = load(columns, [row, row | field], on_bad_row="skip")
    assert set(kept.columns.uid[:, 1]) == {0}


@pytest.mark.parametrize(
    "field", [{"weight": 1}, {"weight": None}, {"weight": 72.5}, {"loss": 0.0}, {"train": "A12"}]
)
def test_other_values_of_a_row_may_be_of_anything(load, field):
    assert len(load(MESSAGES, [{"messages": chat(), **field}]).columns) == 1


def test_a_column_that_an_option_names_is_what_the_option_says(load):
    row = {"prompt": "1+1?", "response": "3", "train": False}

    found = load(LabeledColumns(response_key="response", label_key="train"), [row]).columns

    assert found.reward.tolist() == [0.0]
