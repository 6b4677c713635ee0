"""A column ``system`` beside those of any form is the row's own system message; tools that nobody shows are named."""

import json

import pytest

from rlhf_config.run import PromptData
from rlhf_data import ConversationColumns, LabeledColumns, PairColumns, StepLabelColumns
from rlhf_data.forms.beside import warn_of_tools
from rlhf_data.source import Unreadable

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
OTHER = {"role": "assistant", "content": "What."}
CHAT = [SYSTEM, ASKED]
ROWS = {
    "messages": (ConversationColumns(), {"messages": [ASKED, ANSWER]}, "messages", [*CHAT, ANSWER]),
    "completion": (
        ConversationColumns(),
        {"prompt": [ASKED], "completion": [ANSWER]},
        "messages",
        [*CHAT, ANSWER],
    ),
    "response": (ConversationColumns(), {"prompt": "Hi", "response": "Hello."}, "prompt", CHAT),
    "pair": (
        PairColumns(),
        {"prompt": "Hi", "chosen": "Hello.", "rejected": "What."},
        "prompt",
        CHAT,
    ),
    "pair of messages": (
        PairColumns(),
        {"prompt": [ASKED], "chosen": [ANSWER], "rejected": [OTHER]},
        "prompt",
        CHAT,
    ),
    "pair of conversations": (
        PairColumns(),
        {"prompt": "Hi", "chosen": [ASKED, ANSWER], "rejected": [ASKED, OTHER]},
        "rejected",
        [*CHAT, OTHER],
    ),
    "judged": (
        LabeledColumns(),
        {"prompt": "Hi", "completion": "Hello.", "label": True},
        "prompt",
        CHAT,
    ),
    "steps": (
        StepLabelColumns(),
        {"prompt": [ASKED], "completions": ["1"], "labels": [True]},
        "prompt",
        CHAT,
    ),
    "prompt": (PromptData(), {"prompt": [ASKED]}, "prompt", CHAT),
    "conversation for its prompt": (
        PromptData(form="messages"),
        {"messages": [ASKED, ANSWER]},
        "prompt",
        CHAT,
    ),
}


@pytest.mark.parametrize("name", ["system", "system_prompt"])
@pytest.mark.parametrize("case", ROWS)
def test_it_stands_before_what_it_belongs_to(read, case, name):
    columns, row, column, messages = ROWS[case]

    made = read(columns, [{name: "Be brief.", **row}]).source.row(0)

    assert made[column] == messages
    for nothing in (None, " "):
        kept = read(columns, [{name: nothing, **row}]).source.row(0)
        assert kept[column] == read(columns, [row]).source.row(0)[column]


@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_a_column_that_an_option_names_has_it_too(read, name):
    """With ``system_prompt`` as rows of OpenOrca are written, but for their ``id``."""
    row = {name: "Be brief.", "question": "Hi", "response": "Hello."}

    made = read(ConversationColumns(prompt_key="question"), [row]).source.row(0)

    assert made["question"] == CHAT


@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_another_system_message_is_a_bad_row(read, name):
    row = {name: "Be long.", "messages": [*CHAT, ANSWER]}

    (made,) = read(ConversationColumns(), [row]).source.scan()

    assert isinstance(made, Unreadable)
    assert made.kind == "two system prompts"
    assert repr(name) in made.reason


def test_columns_are_read_by_options_alone_where_that_is_asked_for(read):
    row = {"system": "Be brief.", "prompt": "Hi", "response": "Hello."}

    assert read(ConversationColumns(form="columns"), [row]).source.row(0)["prompt"] == "Hi"


TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [TOOL["function"]]])
def test_tools_of_prompts_that_nobody_shows_are_named(read, caplog, tools):
    rows = [{"prompt": [ASKED]}, {"prompt": [ASKED], "tools": tools}]

    warn_of_tools(read(PromptData(), rows).source, "data.train")

    (said,) = caplog.messages
    assert "data.train: rows have tools in the column 'tools' (from " in said
    assert "rows.jsonl:2 on)" in said


@pytest.mark.parametrize("tools", [[], None, "", "none", ["add"], {"add": 1}])
def test_other_values_are_no_tools(read, caplog, tools):
    warn_of_tools(read(PromptData(), [{"prompt": [ASKED], "tools": tools}]).source, "data.train")

    assert not [said for said in caplog.messages if "rows have tools" in said]


EARLIER = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "One."}]
HISTORY = [["1?", "One."]]


@pytest.mark.parametrize("history", [HISTORY, EARLIER])
@pytest.mark.parametrize(
    "case",
    ["completion", "response", "pair", "pair of messages", "judged", "steps", "prompt"],
)
def test_history_stands_before_the_prompt_and_behind_the_system_message(read, case, history):
    columns, row, column, messages = ROWS[case]

    made = read(columns, [{"system": "Be brief.", "history": history, **row}]).source.row(0)

    given = [dict(message) for message in made[column]]
    for message in given:
        message.pop("train", None)  # of a prompt of messages no answer is learned
    assert given == [SYSTEM, *EARLIER, *messages[1:]]


@pytest.mark.parametrize("history", [None, [], "since 2020", 7])
def test_no_history_changes_nothing(read, history):
    row = {"prompt": "Hi", "response": "Hello."}

    made = read(ConversationColumns(), [{"history": history, **row}]).source.row(0)

    assert made["prompt"] == "Hi"


def test_alpacas_history_is_read_once(read):
    row = {"instruction": "Hi", "history": HISTORY}

    (answered, paired) = (
        read(columns, [row | answers]).source.row(0)
        for columns, answers in (
            (ConversationColumns(), {"output": "Hello."}),
            (PairColumns(), {"chosen": "Hello.", "rejected": "What."}),
        )
    )

    assert answered["messages"] == [*EARLIER, ASKED, ANSWER]
    assert paired["prompt"] == [*EARLIER, ASKED]


@pytest.mark.parametrize(
    ("case", "history", "reason"),
    [
        ("response", [["1?"]], "'history': expected a list of questions with their answers"),
        ("response", [{"a": 1}], "'history': expected a list of questions with their answers"),
        ("messages", HISTORY, "a whole conversation, and the column 'history' has what was said"),
        ("pair of messages", [[1, 2]], "'history': expected a list of questions with their"),
    ],
)
def test_a_history_that_has_no_place_is_a_bad_row(read, case, history, reason):
    columns, row, *_ = ROWS[case]

    (made,) = read(columns, [{"history": history, **row}]).source.scan()

    assert isinstance(made, Unreadable)
    assert reason in made.reason
