"""What a rendering has to show, and the spellings in which it may."""

import html
import json

import pytest

from rlhf_data.chat.template.pieces import ShownText, pieces_of, without_thoughts

TEXT = 'It\'s <b> & "é"\n\\nabla\t\U0001f600'


@pytest.mark.parametrize(
    "shown",
    [
        TEXT,
        TEXT.strip().replace("\n", "\n    "),
        json.dumps(TEXT),
        json.dumps(TEXT, ensure_ascii=False),
        json.dumps(json.dumps(TEXT)),
        json.dumps(json.dumps(TEXT, ensure_ascii=False), ensure_ascii=False),
        json.dumps(TEXT)
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("'", "\\u0027"),
        repr({"a": TEXT}),
        html.escape(TEXT),
    ],
)
def test_a_text_is_found_in_every_spelling_of_templates(shown):
    assert ShownText(f"user: {shown}<end>").shows(TEXT)
    assert not ShownText(f"user: {shown[:-4]}<end>").shows(TEXT)


@pytest.mark.parametrize(
    ("piece", "text"), [("true", "at=True"), ("1.5", "{1.5}"), ("  \n a b ", "a  b")]
)
def test_values_and_blanks_are_found(piece, text):
    assert ShownText(text).shows(piece)


@pytest.mark.parametrize(
    ("content", "outside"),
    [
        ("It is 4.", ["It is 4."]),
        ("<think>\nHm.\n</think>\n\nIt is 4.", ["", "\n\nIt is 4."]),
        ("Hm.</think>It is 4.", ["", "It is 4."]),
        ("One <think>Hm.</think> two <think>Hm.</think> three", ["One ", " two ", " three"]),
        ("[THINK]Hm.[/THINK]It is 4.", ["", "It is 4."]),
        ("<think>Not ended", ["<think>Not ended"]),
    ],
)
def test_thoughts_of_an_answer_need_not_be_shown(content, outside):
    assert without_thoughts(content) == outside


def test_pieces_are_contents_calls_and_tools():
    call = {
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": [1, {"b": "x"}], "c": null}'},
    }
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}, {"type": "image"}]},
        {"role": "user", "content": "<think>I say so</think> Well?"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
    ]
    tool = {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "array", "description": "Numbers"}},
        },
    }

    texts = [piece.text for piece in pieces_of(messages, [tool])]

    assert texts == [
        "Be kind.",
        "<think>I say so</think> Well?",
        "add",
        "a",
        "1",
        "b",
        "x",
        "c",
        "add",
        "Adds.",
        "a",
        "Numbers",
    ]
