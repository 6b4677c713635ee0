"""Pairs: two sequences with the tokens of one prompt, and what is said of each bad row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.libs.data.learned.families import FAMILIES, renderer_of

from rlhf_core.errors import DataError
from rlhf_data import PairColumns
from rlhf_data.learned.options import SequenceOptions
from rlhf_data.learned.pairs import Pairs
from rlhf_data.learned.tokens import SpanTokenizer
from rlhf_data.row_images import RowImages
from rlhf_testing.errors import has_code

USER = {"role": "user", "content": "Why?"}
GOOD, BAD_ANSWER = {"role": "assistant", "content": "So."}, {"role": "assistant", "content": "No."}
AGAIN = {"role": "user", "content": "Eh?"}
SYSTEM = {"role": "system", "content": "Be brief."}
HEAD = "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
CHOSEN, REJECTED = HEAD + "[So.<|im_end|>]\n", HEAD + "[No.<|im_end|>]\n"

FORMS = {
    "text prompt as a chat": (
        PairColumns(chat=True),
        {"prompt": "Why?", "chosen": "So.", "rejected": "No."},
    ),
    "chat prompt, text answers": (
        PairColumns(),
        {"prompt": [USER], "chosen": "So.", "rejected": "No."},
    ),
    "chat prompt, chat answers": (
        PairColumns(),
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD_ANSWER]},
    ),
    "whole conversations": (
        PairColumns(),
        {"chosen": [USER, GOOD], "rejected": [USER, BAD_ANSWER]},
    ),
    "whole conversations and their prompt": (
        PairColumns(),
        {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD_ANSWER]},
    ),
    "whole conversations and their prompt's text": (
        PairColumns(),
        {"prompt": "Why?", "chosen": [USER, GOOD], "rejected": [USER, BAD_ANSWER]},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_pair_is_two_sequences_of_which_the_answers_are_learned(load, shown, form):
    columns, row = FORMS[form]

    rows = load(columns, [row])

    assert [shown(rows, index) for index in (0, 1)] == [CHOSEN, REJECTED]
    assert rows.columns.uid.tolist() == [[0, 0, 0, 0], [0, 0, 1, 0]]
    assert rows.columns.reward.tolist() == [1.0, 0.0]
    assert rows.columns.group.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([SYSTEM, USER], [USER]),
        ([USER], [SYSTEM, USER]),
        ([SYSTEM, USER], [SYSTEM, USER]),
        ([SYSTEM], [SYSTEM, USER]),
        ([SYSTEM], [USER]),
    ],
)
def test_a_prompt_and_answers_that_begin_with_it_have_it_once_whichever_has_the_system_message(
    load, shown, prompt, said
):
    row = {"prompt": prompt, "chosen": [*said, GOOD], "rejected": [*said, BAD_ANSWER]}

    rows = load(PairColumns(), [row])

    head = HEAD.replace("You are kind.", "Be brief.")
    assert shown(rows, 0) == head + "[So.<|im_end|>]\n"
    assert shown(rows, 1) == head + "[No.<|im_end|>]\n"


def test_a_pair_of_plain_texts_is_ended(load, shown):
    rows = load(PairColumns(), [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}])

    assert [shown(rows, index) for index in (0, 1)] == ["1+1=[2<eos>]", "1+1=[3<eos>]"]


def test_turns_behind_the_shared_beginning_are_learned(load, shown):
    row = {
        "chosen": [SYSTEM, USER, GOOD, AGAIN, GOOD, AGAIN, GOOD],
        "rejected": [SYSTEM, USER, GOOD, AGAIN, BAD_ANSWER],
    }

    rows = load(PairColumns(), [row])

    assert rows.columns.num_turns.tolist() == [2, 1]
    assert shown(rows, 0).count("So.") == 3
    assert "\nSo.<|im_end|>" in shown(rows, 0)
    assert shown(rows, 1).endswith("Eh?<|im_end|>\n<|im_start|>assistant\n[No.<|im_end|>]\n")


def test_margins_are_kept_with_both_sequences(load):
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    columns = PairColumns(margin_key="margin")

    rows = load(columns, [{**row, "margin": 2}, {**row, "margin": " 0.5"}])  # text, as in CSV

    assert rows.columns.rewards["margin"].tolist() == [2.0, 2.0, 0.5, 0.5]


def test_a_system_prompt_goes_before_both(load, shown):
    row = {"chosen": [USER, GOOD], "rejected": [USER, BAD_ANSWER]}

    rows = load(PairColumns(system_prompt="Be brief."), [row])

    assert all(shown(rows, index).startswith("<|im_start|>system\nBe brief.") for index in (0, 1))


def test_both_are_cut_to_the_length(load, shown):
    row = {"prompt": "ab", "chosen": "cdef", "rejected": "g"}

    rows = load(PairColumns(), [row], max_length=4, on_too_long="truncate")

    assert [shown(rows, index) for index in (0, 1)] == ["ab[cd]", "ab[g<eos>]"]
    assert rows.num_truncated == 1


texts = st.text(alphabet=st.sampled_from("Helo \n[/INST]|>?"), min_size=1, max_size=10).filter(
    str.strip
)


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("kind", ["bpe", "words"])
@pytest.mark.parametrize("name", FAMILIES)
@given(prompt=texts, answers=st.lists(texts, min_size=2, max_size=2, unique_by=str.strip))
def test_any_pair_shares_its_prompts_tokens_and_learns_where_it_differs(
    name, kind, prompt, answers
):
    """Also where the tokenizer joins the end of the prompt with the beginning of an answer."""
    renderer = renderer_of(name, kind)
    form = Pairs(PairColumns(chat=True), SequenceOptions(), renderer)
    row = {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]}
    texts = form.texts(row, RowImages())

    chosen, rejected = form.sequences(row, SpanTokenizer(renderer, eos=0).tokenize(texts))

    start = chosen.turns[0, 0]
    assert start == rejected.turns[0, 0]
    assert np.array_equal(chosen.token_ids[:start], rejected.token_ids[:start])
    for text, sequence in zip(texts, (chosen, rejected), strict=True):
        assert sequence.token_ids.tolist() == renderer.encode(text.text)
        behind = renderer.tokenizer.decode(sequence.token_ids[slice(*sequence.turns[0])])
        assert text.text[slice(*text.spans[0])].strip() in behind


def test_a_seam_that_one_answer_merges_with_begins_the_learned_part_of_both(load, shown):
    renderer = renderer_of("zephyr", "bpe")
    row = {"prompt": "Hi [/INST]", "chosen": " Hello", "rejected": "?"}
    merged, apart = renderer.encode("Hi [/INST] Hello"), renderer.encode("Hi [/INST]?")
    shared = next(i for i, (a, b) in enumerate(zip(merged, apart, strict=False)) if a != b)

    rows = load(PairColumns(), [row], family="zephyr", kind="bpe")

    first = [int(np.argmax(mask)) for mask in np.split(rows.columns.action_mask, [len(merged) + 1])]
    assert first == [shared, shared]
    assert shared < len(renderer.encode("Hi [/INST]"))


BAD = {
    "two system messages": (
        {
            "prompt": [{"role": "system", "content": "Be kind."}, USER],
            "chosen": [SYSTEM, USER, GOOD],
            "rejected": [SYSTEM, USER, BAD_ANSWER],
        },
        "begin with different system messages; leave one out",
        "data/two-system-prompts",
    ),
    "the same": (
        {"prompt": "a", "chosen": "b", "rejected": "b"},
        "are the same",
        "data/no-difference",
    ),
    "the same tokens": (
        {"prompt": [USER], "chosen": [GOOD], "rejected": [{**GOOD, "mood": "Ann"}]},
        "are the same tokens",
        "data/no-difference",
    ),
    "text and messages": (
        {"prompt": "a", "chosen": "b", "rejected": [USER, GOOD]},
        "two texts or two lists of messages; got str and list",
        "data/wrong-type",
    ),
    "another prompt": (
        {"chosen": [USER, GOOD], "rejected": [AGAIN, BAD_ANSWER]},
        "they share 0 of 2 and 2 messages",
        "data/no-shared-prompt",
    ),
    "no answer": (
        {"chosen": [USER, GOOD], "rejected": [USER, AGAIN]},
        "an answer of the assistant in each; they share 1",
        "data/no-shared-prompt",
    ),
    "one goes on": (
        {"chosen": [USER, GOOD], "rejected": [USER, GOOD, AGAIN]},
        "they share 2 of 2 and 3 messages",
        "data/no-shared-prompt",
    ),
    "no prompt": (
        {"chosen": [GOOD], "rejected": [BAD_ANSWER]},
        "they share 0 of 1 and 1",
        "data/no-shared-prompt",
    ),
    "messages that Python printed": (
        {"prompt": "a", "chosen": str([USER, GOOD]), "rejected": str([USER, BAD_ANSWER])},
        "'chosen' has messages as Python prints them",
        "data/printed-messages",
    ),
    "messages that Python printed in the other": (
        {"prompt": "a", "chosen": "b", "rejected": str([USER, BAD_ANSWER])},
        "'rejected' has messages as Python prints them",
        "data/printed-messages",
    ),
    "blank answer": (
        {"chosen": [USER, GOOD], "rejected": [USER, {**GOOD, "content": " "}]},
        "is empty",
        "data/empty",
    ),
    "no chosen": (
        {"prompt": "a", "rejected": "b"},
        r"'chosen'; .* Set --data\.chosen_key",
        "data/missing-column",
    ),
    "null": (
        {"prompt": "a", "chosen": "b", "rejected": None},
        "column 'rejected' is null",
        "data/empty",
    ),
    "a number": (
        {"prompt": "a", "chosen": "b", "rejected": 3},
        "got str and int",
        "data/wrong-type",
    ),
    "numbers": (
        {"prompt": "a", "chosen": 2, "rejected": 3},
        "expected a list of chat messages",
        "data/wrong-type",
    ),
    "margin of words": (
        {"margin": "much"},
        "expected a finite number, got 'much'",
        "data/bad-margin",
    ),
    "margin that is true": (
        {"margin": True},
        "expected a finite number, got True",
        "data/bad-margin",
    ),
    "margin without end": (
        {"margin": float("inf")},
        "expected a finite number, got inf",
        "data/bad-margin",
    ),
    "no margin": ({"margin": None}, "column 'margin' is null", "data/empty"),
    "unknown role": (
        {"chosen": [{"role": "human", "content": "x"}, GOOD], "rejected": [USER, BAD_ANSWER]},
        "got 'human'",
        "data/unknown-role",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_by_file_line_and_reason(load, case):
    row, reason, code = BAD[case]
    good = {"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1.0}
    row = (
        {**good, **row} if "chosen" not in row and "rejected" not in row else {"margin": 1.0, **row}
    )
    columns = PairColumns(margin_key="margin")

    with pytest.raises(
        DataError,
        match=rf"(?s)data\.train: 1 of 2 rows .*rows\.jsonl:2: .*{reason}",
        check=has_code(code),
    ):
        load(columns, [good, row])


def test_answers_that_differ_behind_the_cut_are_the_same(load):
    row = {"prompt": "ab", "chosen": "cde", "rejected": "cdf"}

    with pytest.raises(
        DataError, match=r"tokens, up to --data\.max_length", check=has_code("data/no-difference")
    ):
        load(PairColumns(), [row], max_length=4, on_too_long="truncate")


def test_a_pair_of_which_one_answer_is_cut_off_whole_is_bad(load):
    row = {"prompt": "abcd", "chosen": "c", "rejected": "d"}

    with pytest.raises(DataError, check=has_code("data/nothing-left-to-learn")):
        load(PairColumns(), [row], max_length=4, on_too_long="truncate")


def test_a_pair_that_is_too_long_is_one_bad_row(load):
    rows = [
        {"prompt": "ab", "chosen": "c" * 9, "rejected": "d" * 9},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ]

    found = load(PairColumns(), rows, max_length=8, on_bad_row="skip")

    assert [bad.kind for bad in found.bad] == ["too long"]
    assert found.columns.uid[:, 1].tolist() == [1, 1]
