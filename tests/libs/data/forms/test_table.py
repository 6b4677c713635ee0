"""Each form: which rows are of it, and what they are in our own columns."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from rlhf_config.common import FormName
from rlhf_config.run import PromptData
from rlhf_data import ConversationColumns, LabeledColumns, PairColumns, StepLabelColumns
from rlhf_data.forms.form import RowKind
from rlhf_data.forms.recognizing import AS_GIVEN
from rlhf_data.forms.table import FORMS
from rlhf_data.source import Unreadable


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


ASKED, GOOD, BAD = user("Name a color."), assistant("Blue."), assistant("Dog.")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
SHAREGPT = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Hi"},
    {"from": "gpt", "value": "Hello.", "weight": 0},
]
TOOL_TURNS = [
    {"from": "human", "value": "2+2?"},
    {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
    {"from": "observation", "value": "4"},
    {"from": "gpt", "value": "4"},
]
HH = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: And?\n\nAssistant:"
CASES = {
    "sharegpt": (
        ConversationColumns(),
        {"conversations": SHAREGPT, "id": 7},
        {"messages": [system("Be brief."), user("Hi"), {**assistant("Hello."), "weight": 0}]},
    ),
    "sharegpt with tools and a column for the system": (
        ConversationColumns(),
        {"conversations": TOOL_TURNS, "system": "Add.", "tools": "[]"},
        {
            "messages": [
                system("Add."),
                user("2+2?"),
                {**assistant(""), "tool_calls": [CALL]},
                {"role": "tool", "content": "4"},
                assistant("4"),
            ],
            "tools": "[]",
        },
    ),
    "sharegpt with a thought before its call": (
        ConversationColumns(),
        {
            "conversations": [
                TOOL_TURNS[0],
                {**TOOL_TURNS[1], "value": f"<think>\nHm.\n</think>\n{TOOL_TURNS[1]['value']}"},
            ]
        },
        {"messages": [user("2+2?"), {**assistant("<think>\nHm.\n</think>"), "tool_calls": [CALL]}]},
    ),
    "messages": (
        ConversationColumns(),
        {"conversations": [ASKED, GOOD]},
        {"messages": [ASKED, GOOD], "tools": None},
    ),
    "messages as text": (
        ConversationColumns(),
        {"messages": json.dumps([ASKED, GOOD])},
        {"messages": [ASKED, GOOD]},
    ),
    "turns as text": (
        ConversationColumns(),
        {"conversations": json.dumps([SHAREGPT[1], {"from": "gpt", "value": "Hello."}])},
        {"messages": [user("Hi"), assistant("Hello.")]},
    ),
    "verl": (
        ConversationColumns(),
        {
            "data_source": "openai/gsm8k",
            "prompt": [user("1+1? Think.")],
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"question": "1+1?", "answer": "2", "index": 0},
        },
        {"prompt": [user("1+1?")], "response": "2"},
    ),
    "alpaca": (
        ConversationColumns(),
        {"instruction": "Add.", "input": "2 and 3", "output": "5"},
        {"messages": [user("Add.\n2 and 3"), assistant("5")]},
    ),
    "alpaca without input": (
        ConversationColumns(),
        {"instruction": "Name a color.", "input": "", "output": "Blue."},
        {"messages": [ASKED, GOOD]},
    ),
    "alpaca with an input alone": (
        ConversationColumns(),
        {"instruction": "", "input": "Name a color.", "output": "Blue."},
        {"messages": [ASKED, GOOD]},
    ),
    "dolly": (
        ConversationColumns(),
        {"instruction": "Add.", "context": "2 and 3", "response": "5", "category": "qa"},
        {"messages": [user("Add.\n2 and 3"), assistant("5")]},
    ),
    "dolly without context": (
        ConversationColumns(),
        {"instruction": "Name a color.", "context": "", "response": "Blue."},
        {"messages": [ASKED, GOOD]},
    ),
    "alpaca with system and history": (
        ConversationColumns(),
        {"instruction": "And?", "output": "c", "system": "s", "history": [["a", "b"]]},
        {"messages": [system("s"), user("a"), assistant("b"), user("And?"), assistant("c")]},
    ),
    "prompt and completion of messages": (
        ConversationColumns(),
        {"prompt": [user("a"), assistant("b"), ASKED], "completion": [GOOD]},
        {"messages": [user("a"), {**assistant("b"), "train": False}, ASKED, GOOD]},
    ),
    "prompt and response of messages": (
        ConversationColumns(),
        {"prompt": [ASKED], "response": [GOOD]},
        {"messages": [ASKED, GOOD]},
    ),
    "prompt and completion": (
        ConversationColumns(),
        {"prompt": "Name a color.", "completion": "Blue."},
        {"prompt": "Name a color.", "completion": "Blue."},
    ),
    "HH-RLHF": (
        PairColumns(),
        {"chosen": f"{HH} Good.", "rejected": f"{HH} Bad."},
        {
            "chosen": [user("Hi"), assistant("Hello."), user("And?"), assistant("Good.")],
            "rejected": [user("Hi"), assistant("Hello."), user("And?"), assistant("Bad.")],
        },
    ),
    "UltraFeedback": (
        PairColumns(),
        {"prompt": "Name a color.", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"prompt": "Name a color.", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    ),
    "ShareGPT pairs": (
        PairColumns(),
        {
            "conversations": [{"from": "human", "value": "Name a color."}],
            "chosen": {"from": "gpt", "value": "Blue."},
            "rejected": {"from": "gpt", "value": "Dog."},
        },
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    ),
    "pairs behind chat messages": (
        PairColumns(),
        {"messages": [ASKED], "chosen": GOOD, "rejected": BAD},
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    ),
    "pairs of lists behind chat messages": (
        PairColumns(),
        {"conversations": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    ),
    "UltraFeedback with the chosen conversation once more": (
        PairColumns(),
        {"messages": [ASKED, GOOD], "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    ),
    "a conversation and another answer": (
        PairColumns(),
        {"messages": [ASKED, GOOD], "rejected_response": "Dog.", "images": ["a.png"]},
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    ),
    "turns and another answer of messages": (
        PairColumns(),
        {
            "conversations": [
                {"from": "human", "value": "Name a color."},
                {"from": "gpt", "value": "Blue."},
            ],
            "rejected_response": [BAD],
        },
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    ),
    "a longer conversation and another last answer": (
        PairColumns(),
        {"messages": [ASKED, GOOD, ASKED, GOOD], "rejected_response": "Dog."},
        {"prompt": [ASKED, GOOD, ASKED], "chosen": [GOOD], "rejected": [BAD]},
    ),
    "such a conversation to imitate": (
        ConversationColumns(),
        {"messages": [ASKED, GOOD], "rejected_response": "Dog."},
        {"messages": [ASKED, GOOD]},
    ),
    "Alpaca pairs": (
        PairColumns(),
        {"instruction": "Name a color.", "input": "", "chosen": "Blue.", "rejected": "Dog."},
        {"prompt": [ASKED], "chosen": "Blue.", "rejected": "Dog."},
    ),
    "KTO": (
        LabeledColumns(),
        {"prompt": [ASKED], "completion": [GOOD], "label": 0},
        {"messages": [ASKED, GOOD], "label": 0},
    ),
    "KTO with responses": (
        LabeledColumns(),
        {"prompt": "Name a color.", "response": "Blue.", "label": 1},
        {"prompt": "Name a color.", "response": "Blue.", "label": 1},
    ),
    "KTO with a response to messages": (
        LabeledColumns(),
        {"prompt": [ASKED], "response": "Blue.", "label": "false"},
        {"prompt": [ASKED], "response": "Blue.", "label": "false"},
    ),
    "KTO with responses of messages": (
        LabeledColumns(),
        {"prompt": [ASKED], "response": [GOOD], "label": False},
        {"messages": [ASKED, GOOD], "label": False},
    ),
    "KTO of conversations with numbers": (
        LabeledColumns(),
        {"messages": [ASKED, GOOD], "label": 1},
        {"messages": [ASKED, GOOD], "label": 1},
    ),
    "KTO of conversations": (
        LabeledColumns(),
        {"messages": [ASKED, GOOD], "label": True},
        {"messages": [ASKED, GOOD], "label": True},
    ),
    "KTO of LLaMA-Factory's ShareGPT": (
        LabeledColumns(),
        {
            "conversations": [
                {"from": "human", "value": "Name a color."},
                {"from": "gpt", "value": "Blue."},
            ],
            "kto_tag": False,
        },
        {"messages": [ASKED, GOOD], "label": False},
    ),
    "KTO of LLaMA-Factory's Alpaca": (
        LabeledColumns(),
        {"instruction": "Name a color.", "input": "", "output": "Blue.", "kto_tag": True},
        {"messages": [ASKED, GOOD], "label": True},
    ),
    "KTO with a tag": (
        LabeledColumns(),
        {"prompt": "Name a color.", "completion": "Blue.", "kto_tag": "false"},
        {"prompt": "Name a color.", "completion": "Blue.", "label": False},
    ),
    "steps": (
        StepLabelColumns(),
        {"prompt": "1+1?", "completions": ["It is 2."], "labels": [True]},
        {"prompt": "1+1?", "completions": ["It is 2."], "labels": [True]},
    ),
    "question": (PromptData(), {"messages": [ASKED], "answer": "Blue"}, {"prompt": [ASKED]}),
    "messages of a prompt as text": (
        PromptData(),
        {"prompt": json.dumps([ASKED]), "answer": "Blue"},
        {"prompt": [ASKED], "answer": "Blue"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_read_as_our_own_columns_beside_its_others(read, case):
    columns, row, expected = CASES[case]

    found = read(columns, [row])

    made = found.source.row(0)
    assert {name: made[name] for name in expected} == expected
    assert row.keys() <= made.keys()
    assert list(found.source.scan()) == [made]
    named = [getattr(found.columns, key) for key in found.form.keys]
    assert named == list(found.form.keys.values())


def test_every_form_has_an_option_value():
    assert {form.name for form in FORMS} | {AS_GIVEN} == set(get_args(FormName))


def documented() -> list[tuple[str, dict]]:
    """Name and row of each form in the documentation's table."""
    text = (Path(__file__).parents[4] / "docs" / "data.md").read_text(encoding="utf-8")
    table = text.partition("<!-- begin: forms -->")[2].partition("<!-- end: forms -->")[0]
    return [
        (name, json.loads(row))
        for name, row in re.findall(r"(?m)^\| `(\w+)` \| `(\{.*?\})` \|", table)
    ]


def test_every_form_is_documented_with_a_row_that_is_taken_for_it(read):
    columns = {
        RowKind.PROMPTS: PromptData,
        RowKind.PAIRS: PairColumns,
        RowKind.JUDGED: LabeledColumns,
        RowKind.STEPS: StepLabelColumns,
    }
    forms = {form.name: form for form in FORMS}

    assert {name for name, _ in documented()} == set(forms)
    for name, row in documented():
        used = columns.get(forms[name].kind, ConversationColumns)
        assert read(used(), [row]).form.name == name


def test_a_pair_without_the_conversation_that_it_answers_is_a_bad_row(read):
    """In a file of pairs to ShareGPT conversations."""
    turns = [{"from": "human", "value": "Hi"}]
    both = {name: {"from": "gpt", "value": name} for name in ("chosen", "rejected")}

    rows = list(read(PairColumns(), [{"conversations": turns, **both}, both]).source.scan())

    assert isinstance(rows[1], Unreadable)
    assert "expected a column 'conversations'; the row has chosen, rejected" in rows[1].reason
