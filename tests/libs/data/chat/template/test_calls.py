"""Calls reach a template with arguments and empty contents of the kind that it writes."""

import pytest
from tests.libs.data.chat.template.shipped import ENDS, renderer_of, source_of, tokenizer_with

from rlhf_data.chat.renderer import TokenizerRenderer

USER = {"role": "user", "content": "2+3?"}
WITHOUT_CALLS = (
    "cohere2",
    "deepseek_r1_distill",
    "gemma",
    "gemma3",
    "llama3",
    "phi3",
    "qwen2_5_vl",
)
WITH_CALLS = [
    name for name in ENDS if name not in WITHOUT_CALLS and not name.startswith(("llava", "smolvlm"))
]
OBJECT, TEXT = {"a": 2, "note": "it's"}, '{"a":2,  "note": "it\'s"}'


def calling(arguments, **fields):
    function = {"name": "add", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return {"role": "assistant", **fields, "tool_calls": [call]}


@pytest.mark.parametrize("name", WITH_CALLS)
def test_arguments_are_the_same_as_an_object_and_as_its_text(name):
    """OpenAI's messages have JSON text there, which templates for objects write as a text in JSON, or refuse."""
    renderer = renderer_of(name)
    given = [
        renderer.chat_text([USER, calling(arguments, content="")], reply=False).text
        for arguments in (OBJECT, TEXT)
    ]

    assert given[0] == given[1]
    assert "\\" not in given[0].partition("add")[2].replace("\\'", "")


@pytest.mark.parametrize("name", WITH_CALLS)
def test_a_call_without_content_is_the_same_whether_it_is_empty_null_or_not_there(name):
    renderer = renderer_of(name)
    given = [
        renderer.chat_text([USER, calling(OBJECT, **fields)], reply=False).text
        for fields in ({"content": ""}, {"content": None}, {})
    ]

    assert given == [given[0]] * 3


@pytest.mark.parametrize("name", WITH_CALLS)
def test_a_call_without_arguments_has_an_empty_object(name):
    """Some clients write an empty text, which is no JSON."""
    renderer = renderer_of(name)
    no_key = calling({}, content="")
    del no_key["tool_calls"][0]["function"]["arguments"]
    calls = [no_key, *(calling(arguments, content="") for arguments in ("", " ", "{}", {}, None))]

    given = [renderer.render_text([USER, call], reply=False) for call in calls]

    assert given == [given[-2]] * 6


@pytest.mark.parametrize("name", WITH_CALLS)
def test_a_call_may_be_its_function_alone(name):
    """Most templates read the function of a call in an object of its own, and some its type."""
    renderer = renderer_of(name)
    whole = calling(OBJECT, content="")
    (call,) = whole["tool_calls"]
    bare = {**whole, "tool_calls": [{"id": call["id"], **call["function"]}]}
    untyped = {**whole, "tool_calls": [{"id": call["id"], "function": call["function"]}]}

    given = [renderer.render_text([USER, one], reply=False) for one in (whole, bare, untyped)]

    assert given == [given[0]] * 3


def test_a_template_that_wants_no_content_beside_calls_gets_none():
    """The first template of DeepSeek-V3 shows calls only where the content is null."""
    source = (
        "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}"
        "{% for c in m['tool_calls'] %}{{ c['function']['name'] + c['function']['arguments'] }}{% endfor %}"
        "{% else %}{{ m['content'] }}{% endif %}<eos>{% endfor %}"
    )
    renderer = TokenizerRenderer(tokenizer_with(source))

    for fields in ({"content": ""}, {"content": None}, {}):
        shown = renderer.chat_text([USER, calling(OBJECT, **fields)], reply=False).text
        assert shown == '2+3?<eos>add{"a": 2, "note": "it\'s"}<eos>'


def test_a_template_that_prints_arguments_gets_their_json():
    """As an object they would be in Python's spelling."""
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or () %}{{ c.function.name }}"
        "{{ c.function.arguments }}{% endfor %}<eos>{% endfor %}"
    )
    renderer = TokenizerRenderer(tokenizer_with(source))

    shown = renderer.chat_text([USER, calling(OBJECT, content="")], reply=False).text

    assert shown == '2+3?<eos>add{"a": 2, "note": "it\'s"}<eos>'


def test_the_template_for_tools_is_the_one_that_is_tried():
    """A tokenizer may have a template of its own for chats with tools."""
    tokenizer = tokenizer_with(source_of("qwen2_5"), "<|im_end|>")
    without = "{% for m in messages %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer.chat_template = {"default": without, "tool_use": source_of("qwen2_5")}
    tool = {"type": "function", "function": {"name": "add", "description": "x", "parameters": {}}}
    renderer = TokenizerRenderer(tokenizer)
    renderer.render_text([USER, calling(TEXT, content="")], reply=False)

    shown = renderer.chat_text([USER, calling(TEXT, content="")], reply=False, tools=[tool]).text

    assert '{"name": "add", "arguments": {"a": 2, "note": "it\'s"}}' in shown


def test_arguments_that_are_no_object_stay_as_they_are():
    shown = renderer_of("qwen3").render_text([USER, calling('{"a": ', content="")], reply=False)

    assert '"arguments": {"a": }' in shown
