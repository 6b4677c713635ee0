"""Rows that are nearly those of a form: a prompt of text beside messages, a message alone, a prompt that is repeated.

Each is read as the row of lists of messages is, that is, to the same tokens with the same ones learned.
"""

import pytest

from rlhf_core.errors import DataError
from rlhf_data import ConversationColumns, LabeledColumns, PairColumns
from rlhf_testing.errors import has_code

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Name a color."}
GOOD = {"role": "assistant", "content": "Blue."}
OTHER = {"role": "assistant", "content": "Dog."}
TEXT = USER["content"]

IMITATED = [
    {"prompt": TEXT, "completion": [GOOD]},
    {"prompt": TEXT, "response": [GOOD]},
    {"prompt": [USER], "completion": GOOD},
    {"prompt": TEXT, "completion": GOOD},
    {"prompt": TEXT, "response": GOOD},
    {"prompt": [USER], "completion": [USER, GOOD]},
    {"prompt": TEXT, "completion": [USER, GOOD]},
]


def sequence(rows, index):
    columns = rows.columns
    start, end = columns.token_offsets[index : index + 2]
    return columns.token_ids[start:end].tolist(), columns.action_mask[start:end].tolist()


@pytest.mark.parametrize("row", IMITATED)
def test_an_answer_of_messages_is_learned_behind_any_prompt(load, row):
    whole = load(ConversationColumns(), [{"messages": [USER, GOOD]}])

    assert sequence(load(ConversationColumns(), [row]), 0) == sequence(whole, 0)


@pytest.mark.parametrize("row", IMITATED)
def test_a_judged_answer_of_messages_is_learned_behind_any_prompt(load, row):
    whole = load(LabeledColumns(), [{"messages": [USER, GOOD], "label": True}])
    read = load(LabeledColumns(), [{**row, "label": True}])

    assert sequence(read, 0) == sequence(whole, 0)
    assert read.columns.reward.tolist() == [1.0]


@pytest.mark.parametrize(("prompt", "said"), [([SYSTEM, USER], [USER]), ([USER], [SYSTEM, USER])])
def test_a_prompt_that_an_answer_repeats_is_there_once_whichever_has_the_system_message(
    load, prompt, said
):
    whole = load(ConversationColumns(), [{"messages": [SYSTEM, USER, GOOD]}])

    row = {"prompt": prompt, "completion": [*said, GOOD]}

    assert sequence(load(ConversationColumns(), [row]), 0) == sequence(whole, 0)
    judged = load(LabeledColumns(), [{**row, "label": True}])
    assert sequence(judged, 0) == sequence(whole, 0)


@pytest.mark.parametrize("prompt", [TEXT, [USER]])
def test_the_answers_of_a_pair_may_be_one_message_each(load, prompt):
    whole = load(PairColumns(), [{"chosen": [USER, GOOD], "rejected": [USER, OTHER]}])
    read = load(PairColumns(), [{"prompt": prompt, "chosen": GOOD, "rejected": OTHER}])

    assert [sequence(read, index) for index in (0, 1)] == [
        sequence(whole, index) for index in (0, 1)
    ]


@pytest.mark.parametrize(
    "prompt",
    [TEXT, f" {TEXT}\n", "a color", f"Human: {TEXT}\n\nAssistant:"],
    ids=["it", "blanks", "a part", "a transcript"],
)
def test_a_prompt_of_text_that_the_conversations_of_a_pair_have_changes_nothing(load, prompt):
    both = {"chosen": [USER, GOOD], "rejected": [USER, OTHER]}

    read, whole = load(PairColumns(), [{"prompt": prompt, **both}]), load(PairColumns(), [both])

    assert sequence(read, 0) == sequence(whole, 0)


def test_a_prompt_of_text_that_the_conversations_of_a_pair_lack_is_bad_by_name(load):
    both = {"chosen": [USER, GOOD], "rejected": [USER, OTHER]}

    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:2: expected the text of column 'prompt' in both .* nothing would read it: 'Answer in",
        check=has_code("data/no-shared-prompt"),
    ):
        load(PairColumns(), [both, {"prompt": "Answer in French.", **both}])
