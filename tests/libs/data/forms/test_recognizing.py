"""Which form rows are taken for, and what is said of rows that something else learns from."""

import json
import logging

import pytest

from rlhf_config.run import PromptData
from rlhf_core.errors import DataError
from rlhf_data import ConversationColumns, LabeledColumns, PairColumns, StepLabelColumns
from rlhf_data.forms.formed_source import FormedRows
from rlhf_data.source import Unreadable
from rlhf_testing.errors import has_code

ASKED, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}
ALPACA = {"instruction": "Add.", "input": "", "output": "5"}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
KTO = {"prompt": "a", "completion": "b", "label": True}
KTO_RESPONSE = {"prompt": "a", "response": "b", "label": False}
JUDGED_CHATS = [
    ({"messages": [ASKED, ANSWER], "label": True}, "messages"),
    ({"messages": [ASKED, ANSWER], "kto_tag": False}, "messages"),
    ({**SHAREGPT, "label": False}, "sharegpt"),
    ({**SHAREGPT, "kto_tag": False}, "sharegpt"),
    ({**ALPACA, "kto_tag": True}, "alpaca"),
    ({**ALPACA, "label": None, "kto_tag": False}, "alpaca"),
]
"""Conversations with a label, and the form by which their answers are imitated all alike."""
STEPS = {"prompt": "a", "completions": ["b"], "labels": [True]}


def test_rows_that_are_right_are_looked_at_once(read, monkeypatch):
    """A run reads a row again in each epoch."""
    source = read(PromptData(), [{"prompt": "a"}, {"prompt": "b"}]).source
    assert [row["prompt"] for row in source.scan()] == ["a", "b"]
    monkeypatch.delattr(FormedRows, "made")

    assert source.as_read.row(1) == {"prompt": "b"}


@pytest.mark.parametrize("scans", [0, 1, 2])
def test_one_row_that_is_made_into_another_is_so_whenever_it_is_read(read, scans):
    rows = [{"prompt": "a"}, {"prompt": json.dumps([ASKED])}, {"prompt": "b"}]
    source = read(PromptData(), rows).source
    for _ in range(scans):
        assert [row["prompt"] for row in source.scan()] == ["a", [ASKED], "b"]

    assert source.as_read.row(1)["prompt"] == [ASKED]


def test_the_form_is_said_in_one_line(read, caplog):
    caplog.set_level(logging.INFO, "rlhf_data")

    read(ConversationColumns(), [{**SHAREGPT, "id": 1, "source": "x"}])

    assert caplog.messages[0] == "data: ShareGPT conversations, 3 columns (rows.jsonl)"


@pytest.mark.parametrize(
    ("columns", "row", "form", "command"),
    [
        (ConversationColumns(), PAIR, "preference pairs", "rlhf dpo .*or rlhf rm "),
        (ConversationColumns(), KTO, "KTO rows", "rlhf dpo --preference.loss kto "),
        (ConversationColumns(), KTO_RESPONSE, "KTO rows", "rlhf dpo --preference.loss kto "),
        (ConversationColumns(), STEPS, "labels of their steps", "rlhf prm "),
        (PairColumns(), KTO, "KTO rows", "rlhf dpo --preference.loss kto "),
        (PairColumns(), SHAREGPT, "ShareGPT conversations", "rlhf sft "),
        (PairColumns(), ALPACA, "Alpaca instructions", "rlhf sft "),
        (LabeledColumns(), PAIR, "preference pairs", "rlhf dpo .*or rlhf rm "),
        (StepLabelColumns(), PAIR, "preference pairs", "rlhf dpo .*or rlhf rm "),
        (PromptData(), SHAREGPT, "ShareGPT conversations", "rlhf sft .*--data.form sharegpt"),
        (PromptData(), ALPACA, "Alpaca instructions", "rlhf sft .*--data.form alpaca"),
        (PromptData(), {"text": "a"}, "plain texts", "rlhf sft "),
    ],
)
def test_rows_of_something_else_say_what_learns_from_them(read, columns, row, form, command):
    with pytest.raises(
        DataError,
        match=rf"(?s)rows.jsonl: these look like .*{form}.*{command}",
        check=has_code("data/other-form"),
    ):
        read(columns, [row])


@pytest.mark.parametrize(
    ("row", "form"),
    [(KTO, "completion"), (KTO_RESPONSE, "response"), ({**KTO, "x": 1}, "completion")],
)
def test_rows_with_a_label_say_the_form_by_which_they_are_imitated(read, row, form):
    with pytest.raises(DataError, check=has_code("data/other-form")) as caught:
        read(ConversationColumns(), [row])

    assert "name the columns" not in str(caught.value)
    assert f"To read them here, add --data.form {form}, " in str(caught.value)
    found = read(ConversationColumns(form=form), [row])
    assert (found.source.row(0), found.columns.response_key) == ({**row, "tools": None}, form)


@pytest.mark.parametrize(("row", "form"), JUDGED_CHATS)
def test_a_conversation_with_a_label_is_imitated_where_its_form_is_asked_for_alone(read, row, form):
    """A label of false says that the answer is bad, in whatever form the conversation is."""
    with pytest.raises(
        DataError, match=f"add --data.form {form}, ", check=has_code("data/other-form")
    ):
        read(ConversationColumns(), [row])

    assert read(ConversationColumns(form=form), [row]).source.row(0)["messages"]
    assert read(LabeledColumns(), [row]).form.name == "labeled_chat"


@pytest.mark.parametrize("row", [{**ALPACA, "label": 1}, {**SHAREGPT, "label": "greeting"}])
def test_a_class_of_a_conversation_is_no_judgement_of_its_answer(read, row):
    assert read(ConversationColumns(), [row]).source.row(0)["messages"]


def test_a_row_with_a_label_among_rows_without_is_a_bad_row(read):
    found = read(ConversationColumns(), [SHAREGPT, {**SHAREGPT, "kto_tag": False}])

    with pytest.raises(
        DataError, match="looks like labeled_chat", check=has_code("data/another-form")
    ):
        found.source.row(1)


@pytest.mark.parametrize("label", [1, 0, True, "1"])
def test_prompts_are_taken_from_conversations_with_a_label(read, label):
    row = {"messages": [ASKED, ANSWER], "label": label}
    with pytest.raises(
        DataError, match=r"add --data\.form labeled_chat to take", check=has_code("data/other-form")
    ):
        read(PromptData(), [row])

    found = read(PromptData(form="labeled_chat"), [row])

    assert found.source.row(0)["prompt"] == [ASKED]


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (ConversationColumns(), {"prompt": "a", "answer": "b"}),
        (LabeledColumns(), {"prompt": "a", "completion": "b", "good": True}),
        (PairColumns(), {"prompt": "a", "chosen": "b"}),
        (PromptData(), {"question": "a"}),
        (ConversationColumns(), {"text": "a", "role": "prompter", "parent_id": None}),
    ],
)
def test_rows_that_lack_a_column_are_left_to_those_who_read_it(read, columns, row):
    found = read(columns, [row])

    assert (found.form, found.columns, found.source.row(0)) == (None, columns, row)


@pytest.mark.parametrize("label", ["17", "1", 1, 0.0, None])
def test_a_response_beside_the_right_answer_of_its_prompt_is_imitated(read, label):
    """As in rows that were sampled for a reward; a truth alone says that the response may be bad."""
    found = read(ConversationColumns(), [{"prompt": "a", "response": "b", "label": label}])

    assert found.form.name == "response"


def test_options_of_columns_win(read):
    row = {"q": "a", "a": "b", **SHAREGPT, "talk": [ASKED, ANSWER]}

    found = read(ConversationColumns(prompt_key="q", response_key="a"), [row])
    assert (found.form.name, found.columns.prompt_key) == ("response", "q")

    found = read(ConversationColumns(messages_key="talk"), [row])
    assert (found.form.name, found.source.row(0)["talk"]) == ("messages", [ASKED, ANSWER])

    found = read(ConversationColumns(template="Q: {q}", response_key="a"), [row])
    assert (found.form, found.source.row(0)) == (None, row)


def test_turns_of_sharegpt_in_a_column_of_another_name_are_read(read):
    row = {"talk": SHAREGPT["conversations"]}

    found = read(ConversationColumns(messages_key="talk"), [row])

    assert found.columns.messages_key == "talk"
    assert found.source.row(0)["talk"] == [ASKED, ANSWER]


def test_an_option_names_the_form(read):
    row = {**PAIR, **SHAREGPT, "text": "t", "response": "r"}

    assert read(ConversationColumns(), [row]).form.name == "response"
    assert read(ConversationColumns(form="sharegpt"), [row]).form.name == "sharegpt"
    found = read(ConversationColumns(form="columns", messages_key="conversations"), [row])
    assert (found.form, found.source.row(0)) == (None, row)
    with pytest.raises(
        DataError,
        match=r"--data\.form pair.*conversations.*rlhf dpo",
        check=has_code("data/form-of-others"),
    ):
        read(ConversationColumns(form="pair"), [row])


def test_prompts_alone_are_taken_from_another_form_on_request(read):
    rows = [
        SHAREGPT,
        {"conversations": [*SHAREGPT["conversations"], {"from": "user", "value": "So?"}]},
    ]

    found = read(PromptData(form="sharegpt"), rows)

    so = {"role": "user", "content": "So?"}
    assert found.columns.prompt_key == "prompt"
    assert [row["prompt"] for row in found.source.scan()] == [[ASKED], [ASKED, ANSWER, so]]
    chosen = {
        "chosen": "\n\nHuman: Hi\n\nAssistant: a",
        "rejected": "\n\nHuman: Hi\n\nAssistant: b",
    }
    assert read(PromptData(form="hh_rlhf"), [chosen]).source.row(0)["prompt"] == [ASKED]


def test_a_row_of_another_form_is_a_bad_row(read):
    found = read(ConversationColumns(), [SHAREGPT, ALPACA, SHAREGPT, {"conversations": []}])

    bad = [row for row in found.source.scan() if isinstance(row, Unreadable)]
    assert [row.kind for row in bad] == ["another form"]
    assert "expected a row of the form sharegpt" in bad[0].reason
    assert "looks like alpaca (Alpaca instructions)" in bad[0].reason
    with pytest.raises(
        DataError, match=r"rows\.jsonl:2.*sharegpt", check=has_code("data/another-form")
    ):
        found.source.row(1)


@pytest.mark.parametrize(
    ("columns", "row", "reason", "code"),
    [
        (
            ConversationColumns(),
            {
                "conversations": [
                    {"from": "human", "value": "a"},
                    {"from": "narrator", "value": "b"},
                ]
            },
            "turn 2: expected 'from' to be one of system, human, .*got 'narrator'",
            "data/unknown-role",
        ),
        (
            ConversationColumns(),
            {"conversations": [{"from": "function_call", "value": "add(2)"}]},
            "turn 1: expected JSON with the name .*got 'add",
            "data/bad-tool-call",
        ),
        (
            ConversationColumns(),
            {**SHAREGPT, "system": "x", "conversations": [{"from": "system", "value": "y"}]},
            "the column 'system' has another one",
            "data/two-system-prompts",
        ),
        (
            ConversationColumns(),
            {**ALPACA, "history": [["a"]]},
            "'history': expected a list",
            "data/bad-history",
        ),
        (
            PairColumns(),
            {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: Assistant: x"},
            "'rejected': expected a transcript that ends with",
            "data/no-answer",
        ),
        (
            PairColumns(),
            {"messages": [ASKED], "rejected_response": "No."},
            "expected a conversation that ends with the answer to which 'rejected_response'.*'user'",
            "data/no-answer",
        ),
        (
            LabeledColumns(),
            {"prompt": [ASKED], "completion": [ANSWER, ANSWER], "label": True},
            "the label judges one answer; got 2 messages",
            "data/several-answers",
        ),
    ],
)
def test_a_part_without_a_place_makes_a_bad_row(read, columns, row, reason, code):
    with pytest.raises(DataError, match=rf"rows.jsonl:1: .*{reason}", check=has_code(code)):
        read(columns, [row]).source.row(0)


def test_tools_are_read_wherever_rows_have_them(read):
    tools = [{"type": "function", "function": {"name": "add"}}]

    found = read(
        ConversationColumns(),
        [{"messages": [ASKED, ANSWER]}, {"messages": [ASKED, ANSWER], "tools": tools}],
    )

    assert found.columns.tools_key == "tools"
    assert [row["tools"] for row in found.source.scan()] == [None, tools]
    assert read(ConversationColumns(tools_key="t"), [SHAREGPT]).columns.tools_key == "t"


def test_messages_as_json_text_are_read_in_any_row_and_under_any_name(read):
    both = {"good": [ASKED, ANSWER], "bad": [ASKED, {**ANSWER, "content": "No."}]}
    as_text = {name: json.dumps(messages) for name, messages in both.items()}

    found = read(PairColumns(chosen_key="good", rejected_key="bad"), [both, as_text])

    rows = list(found.source.scan())
    assert [rows[1][name] for name in ("good", "bad")] == [
        rows[0][name] for name in ("good", "bad")
    ]


VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [ASKED],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0, "question": "1+1?", "answer": "2"},
}


def test_rows_of_verl_are_prompts_with_all_their_columns(read):
    found = read(PromptData(), [VERL])

    assert found.form.name == "prompt"
    assert found.source.row(0) == VERL


def test_rows_of_verl_are_learned_by_their_answer_unless_an_option_names_another(read):
    assert read(ConversationColumns(), [VERL]).form.name == "verl"
    named = read(ConversationColumns(response_key="data_source"), [VERL])

    assert named.source.row(0)[named.columns.response_key] == "openai/gsm8k"
