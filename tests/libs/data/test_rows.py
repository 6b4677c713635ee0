"""From a row to a prompt: what works, and what every unusable row is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import DataError
from rlhf_data.rows import (
    BadRow,
    PromptFormat,
    RowProblem,
    bad_row_error,
    check_text,
    describe_skipped,
    read_messages,
)
from rlhf_testing.errors import has_code

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}


def test_a_text_column_is_the_prompt():
    assert PromptFormat().prompt({"prompt": "2+2=", "answer": 4}) == "2+2="


def test_another_column_can_be_the_prompt():
    assert PromptFormat(prompt_key="question").prompt({"question": "why?"}) == "why?"


def test_a_template_is_filled_from_columns():
    format = PromptFormat(template="Q: {question} ({meta[level]:>3})\nA: {{}}")

    assert format.prompt({"question": "1+1", "meta": {"level": 2}}) == "Q: 1+1 (  2)\nA: {}"
    assert format.columns == ("question", "meta")


def test_chat_makes_text_one_user_message():
    format = PromptFormat(template="{q}", chat=True, system_prompt="be brief")

    assert format.prompt({"q": "hi"}) == (SYSTEM, USER)


def test_messages_are_taken_without_their_empty_fields():
    row = {"prompt": [{**USER, "name": None, "tool_calls": None}]}

    assert PromptFormat().prompt(row) == (USER,)


def test_a_system_prompt_goes_before_the_messages():
    assert PromptFormat(system_prompt="be brief").prompt({"prompt": [USER]}) == (SYSTEM, USER)


def test_message_content_may_be_a_list_of_parts():
    parts = [{"type": "image"}, {"type": "text", "text": "what is it?"}]

    assert (
        PromptFormat().prompt({"prompt": [{"role": "user", "content": parts}]})[0]["content"]
        == parts
    )


def test_an_assistant_message_with_tool_calls_needs_no_content():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    messages = PromptFormat().prompt({"prompt": [USER, call, {"role": "tool", "content": "3"}]})

    assert messages[1] == {"role": "assistant", "tool_calls": [{"name": "f"}]}


@pytest.mark.parametrize(("text", "calls"), [('[{"name": "f"}]', [{"name": "f"}]), (" ", [])])
def test_calls_of_tools_may_be_json_text_as_tables_have_them(text, calls):
    row = {"prompt": [{"role": "assistant", "content": "x", "tool_calls": text}, USER]}

    assert PromptFormat().prompt(row)[0]["tool_calls"] == calls


@pytest.mark.parametrize(
    ("row", "kind", "reason"),
    [
        ({"question": "x", "id": 3}, "missing column", r"'prompt'; the row has question, id"),
        ({}, "missing column", "the row has none. Set --data.prompt_key or --data.template"),
        (
            {"conversations": ["Hi", "Hello."]},
            "missing column",
            r"'conversations' has no messages, .* 'from' and 'value': \['Hi'",
        ),
        ({"messages": {"role": ["user"]}}, "missing column", "'messages' has no messages"),
        (
            {"prompt": [{"role": "assistant", "tool_calls": "[f(1)]"}]},
            "bad tool call",
            r"message 1: expected tool_calls as a list, or as its JSON text; got '\[f",
        ),
        ({"Prompt": "x"}, "missing column", "Set --data.prompt_key Prompt or"),
        ({"query": "x"}, "missing column", "Set --data.prompt_key query or"),
        (
            {"instruction": "x", "context": "y"},
            "missing column",
            r"--data.prompt_key instruction or --data.template '\{instruction\} \{context\}'",
        ),
        ({"text": "x", "parent_id": None}, "missing column", "messages of a tree: write each"),
        ({"prompt": None}, "empty", "is null"),
        ({"prompt": 5}, "wrong type", "expected text or a list of chat messages.*got int 5"),
        ({"prompt": {"role": "user"}}, "wrong type", r"got dict.*a list of one, \[message\]"),
        ({"prompt": b"x"}, "wrong type", "got bytes.*cast the column to a string"),
        ({"prompt": ""}, "empty", "the prompt is empty"),
        ({"prompt": " \n\t"}, "empty", "the prompt is empty"),
        ({"prompt": "a\0b"}, "NUL character", "NUL at character 2"),
        ({"prompt": "ab\ud83d"}, "lone surrogate", r"U\+D83D.* at character 3"),
        ({"prompt": []}, "empty", "list of messages is empty"),
        ({"prompt": ["hi"]}, "bad message", "message 1: expected an object with role and content"),
        ({"prompt": [{"content": "x"}]}, "bad message", "message 1: expected a role, got NoneType"),
        ({"prompt": [{"role": "user"}]}, "bad message", "expected text as content, got NoneType"),
        (
            {"prompt": [{"role": "user", "content": 3}]},
            "bad message",
            "got int 3. Write it as text",
        ),
        (
            {"prompt": [{"role": "tool", "content": {"sum": 5}}]},
            "bad message",
            r"got dict \{'sum': 5\}\. Write it as text, an object or a number as json\.dumps writes it",
        ),
        (
            {"prompt": [{"role": "user", "value": "x"}]},
            "bad message",
            "Its text is in 'value': call this key content",
        ),
        (
            {"prompt": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]},
            "bad message",
            "Write the call as tool_calls",
        ),
        (
            {"prompt": [{"role": "user", "content": [3]}]},
            "bad message",
            "a part of content, got int",
        ),
        ({"prompt": [{"role": "user", "content": " "}]}, "empty", "message 1 is empty"),
        (
            {"prompt": [SYSTEM, {"role": "user", "content": "\udc00"}]},
            "lone surrogate",
            "message 2 has half of a surrogate pair",
        ),
        (
            {"prompt": [USER, {"role": "assistant", "content": "yes"}]},
            "ends with the assistant",
            "the policy has to write this message",
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_said(row, kind, reason):
    with pytest.raises(RowProblem, match=reason) as caught:
        PromptFormat().prompt(row)

    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("format", "row", "reason"),
    [
        (PromptFormat(template="{a}"), {"b": 1}, "expected a column 'a'; the row has b"),
        (PromptFormat(template="{a}"), {"a": None}, "column 'a' is null"),
        (PromptFormat(template="{a:d}"), {"a": "text"}, "cannot be filled: ValueError"),
        (PromptFormat(template="{a[x]}"), {"a": {"y": 1}}, "cannot be filled: KeyError"),
        (PromptFormat(template="{a}"), {"a": " "}, "the prompt is empty"),
        (PromptFormat(system_prompt="x"), {"prompt": "text"}, r"Add --data\.chat"),
        (PromptFormat(system_prompt="x"), {"prompt": [SYSTEM, USER]}, "a system message already"),
    ],
)
def test_what_a_format_cannot_make_of_a_row_is_said(format, row, reason):
    with pytest.raises(RowProblem, match=reason):
        format.prompt(row)


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{", "data/malformed-template"),
        ("{}", "data/malformed-template"),
        ("{0}", "data/malformed-template"),
        ("no column", "data/template-without-column"),
        ("{a.__class__}", "data/malformed-template"),
        ("{a[0].x}", "data/malformed-template"),
    ],
)
def test_a_template_that_is_none_is_refused(template, code):
    """Among them those that reach for attributes: a template is data, not code."""
    with pytest.raises(DataError, match=r"data\.template", check=has_code(code)):
        PromptFormat(template=template)


def test_a_system_prompt_has_no_place_in_a_text_template():
    with pytest.raises(
        DataError, match=r"--data\.chat", check=has_code("data/system-prompt-without-chat")
    ):
        PromptFormat(template="{a}", system_prompt="be brief")


@given(st.text())
def test_text_without_surrogates_is_refused_only_when_blank_or_with_nul(text):
    """Hypothesis' text has no surrogates unless it is asked for them."""
    if text.strip() and "\0" not in text:
        check_text(text, "it")
        return
    with pytest.raises(RowProblem) as caught:
        check_text(text, "it")
    assert caught.value.kind == ("NUL character" if text.strip() else "empty")


@given(st.text(alphabet=st.characters(categories=["Cs"]), min_size=1), st.text(), st.text())
def test_a_lone_surrogate_never_passes(surrogates, before, after):
    with pytest.raises(RowProblem):
        check_text(before + surrogates + after, "it")


def test_the_error_lists_the_first_rows_and_counts_all():
    bad = [BadRow(f"f.jsonl:{n}", "empty", "the prompt is empty") for n in range(1, 8)]

    message = str(bad_row_error(bad, 10, "data.train", "rlhf data check --all f.jsonl"))

    assert "7 of 10 rows cannot be used (7 empty)" in message
    assert "f.jsonl:5: the prompt is empty" in message
    assert "f.jsonl:6" not in message
    assert "and 2 more; list them with: rlhf data check --all f.jsonl" in message
    assert "--data.on_bad_row skip" in message


def test_the_error_has_at_most_five_lines_of_each_kind():
    kinds = [("empty", 7), ("too long", 2), ("wrong type", 6)]
    bad = [BadRow(f"f.jsonl:{kind}:{n}", kind, "x") for kind, count in kinds for n in range(count)]

    message = str(bad_row_error(bad, 20, "data.train", "rlhf data check --all 'my f.jsonl'"))

    shown = [message.count(f"f.jsonl:{kind}:") for kind, _ in kinds]
    assert shown == [5, 2, 5]
    assert "and 3 more; list them with: rlhf data check --all 'my f.jsonl'" in message


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["missing column", "missing column"], "data/missing-column"),
        (["limit of an image's area"], "data/limit-of-an-images-area"),
        (["empty", "missing column"], "data/bad-rows"),
    ],
)
def test_the_code_of_bad_rows_is_that_of_their_kind(kinds, code):
    """Rows of several kinds have one of their own."""
    bad = [BadRow(f"f.jsonl:{line}", kind, "why") for line, kind in enumerate(kinds, start=1)]

    assert bad_row_error(bad, 10, "data.train", None).code == code


def test_a_command_that_would_need_more_options_is_not_named():
    bad = [BadRow(f"f.jsonl:{n}", "empty", "no answer") for n in range(1, 8)]

    message = str(bad_row_error(bad, 10, "data.train", None))

    assert "  and 2 more\n" in message
    assert "rlhf data check" not in message


def test_messages_may_end_with_the_assistant_where_it_is_learned_from():
    messages = [USER, {"role": "assistant", "content": "yes", "name": None}]

    assert read_messages(messages) == (USER, {"role": "assistant", "content": "yes"})


def test_skipping_is_not_offered_when_nothing_would_be_left():
    bad = [BadRow("f.jsonl:1", "empty", "the prompt is empty")]

    assert "skip" not in str(bad_row_error(bad, 1, "data.train", "rlhf data check --all f.jsonl"))


def test_what_was_skipped_is_counted_by_kind():
    bad = [BadRow("f:1", "empty", ""), BadRow("f:2", "too long", ""), BadRow("f:3", "empty", "")]

    expected = "data.train: left out 3 of 9 rows (2 empty, 1 too long); the first is f:1"
    assert describe_skipped(bad, 9, "data.train") == expected
