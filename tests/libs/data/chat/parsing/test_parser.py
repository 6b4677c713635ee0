"""Answers are read from the tokens that were sampled; marks in ordinary text stay text."""

import json
import re

import pytest
from tests.libs.data.chat.template import shipped
from tests.libs.data.chat.zoo import KINDS, renderer_of, tokenizer_of

from rlhf_core.contracts import ToolCall
from rlhf_data.chat.parsing.families import THOUGHTS, calls_of, thoughts_of

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"properties": {"a": {"type": "integer"}, "note": {"type": "string"}}},
    },
}
HERMES_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 12,"b":30}}\n</tool_call>'
DEEPSEEK_CALL = (
    "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>add\n```json\n"
    '{"a": 12}\n```<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>'
)
DEEPSEEK_31_CALL = (
    '<\uff5ctool▁call▁begin\uff5c>add<\uff5ctool▁sep\uff5c>{"a": 12}<\uff5ctool▁call▁end\uff5c>'
)


def sampled(name, text):
    """The tokens of a policy that writes marks as tokens."""
    return tokenizer_of(name)(text, add_special_tokens=False)["input_ids"]


def parsed(name, text, **options):
    return renderer_of(name).parse(sampled(name, text), **options)


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("hermes", HERMES_CALL, "", [("add", '{"a": 12,"b":30}')]),
        (
            "hermes",
            f"I add.\n{HERMES_CALL}\n{HERMES_CALL}",
            "I add.\n",
            [("add", '{"a": 12,"b":30}')] * 2,
        ),
        ("thinking", HERMES_CALL + "<|im_end|>", "", [("add", '{"a": 12,"b":30}')]),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "",
            [("add", '{"a": 1}')],
        ),
        ("deepseek", "so" + DEEPSEEK_CALL, "so", [("add", '{"a": 12}')]),
        ("deepseek", DEEPSEEK_31_CALL, "", [("add", '{"a": 12}')]),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]',
            "",
            [("add", '{"a": 1}'), ("now", "{}")],
        ),
        ("llama3", '{"name": "add", "parameters": {"a": 1}}<|eot_id|>', "", [("add", '{"a": 1}')]),
        (
            "llama3",
            'so<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
            "so",
            [("add", '{"a": 1}'), ("now", "{}")],
        ),
    ],
)
def test_calls_are_read_as_they_were_written(name, text, content, calls):
    answer = parsed(name, text)

    assert [(call.name, call.arguments) for call in answer.tool_calls] == calls
    assert answer.malformed == ()
    assert (answer.content or "").strip() == content.strip()
    assert len({call.id for call in answer.tool_calls}) == len(calls)


def test_tags_have_the_types_of_the_schema():
    text = (
        "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n<parameter=note>\n12\n</parameter>\n"
        "</function>\n</tool_call>"
    )

    (call,) = parsed("hermes", text, tools=[ADD]).tool_calls
    (untyped,) = parsed("hermes", text).tool_calls

    assert json.loads(call.arguments) == {"a": 12, "note": "12"}
    assert json.loads(untyped.arguments) == {"a": "12", "note": "12"}


def test_calls_of_glm_are_read_as_its_template_writes_them():
    """Names, texts and other values come back; a text that looks like a number stays one by its schema."""
    renderer = shipped.renderer_of("glm4moe")
    asked = {"role": "user", "content": "Go."}
    given = [
        {"a": 12, "note": "12", "places": ["x", 1], "deep": {"b": None}},
        {"note": "<b>two\nlines</b>", "a": -1.5},
        {},
    ]
    called = [{"type": "function", "function": {"name": "add", "arguments": one}} for one in given]
    message = {"role": "assistant", "content": "So:", "tool_calls": called}
    schema = {"a": {"type": "number"}, "note": {"type": "string"}}
    more = {"places": {"type": "array"}, "deep": {"type": "object"}}
    tool = {"name": "add", "description": "Adds.", "parameters": {"properties": schema | more}}
    shown = renderer.render_text([asked, message], reply=False).split("<|assistant|>")[1]
    ids = renderer.tokenizer(shown, add_special_tokens=False)["input_ids"]

    answer = renderer.parse(ids, tools=[{"type": "function", "function": tool}])

    assert [call.name for call in answer.tool_calls] == ["add"] * 3
    assert [json.loads(call.arguments) for call in answer.tool_calls] == given
    assert answer.malformed == ()
    assert answer.content.strip() == "So:"


def test_calls_of_gemma_4_are_read_as_its_template_writes_them():
    renderer = shipped.renderer_of("gemma4_v5")
    asked = {"role": "user", "content": "Go."}
    given = [
        {"a": 12, "note": '12, {b:"c"}', "places": ["x", 1, True, None], "deep": {"b": {"c": "d"}}},
        {"a": -1.5, "note": "two\nlines: [1]"},
        {},
    ]
    called = [
        {"type": "function", "id": f"call{n}", "function": {"name": "add", "arguments": one}}
        for n, one in enumerate(given)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": called}
    shown = renderer.render_text([asked, message], reply=False).split("<|turn>model\n")[1]
    ids = renderer.tokenizer(shown, add_special_tokens=False)["input_ids"]

    answer = renderer.parse(ids)

    assert [call.name for call in answer.tool_calls] == ["add"] * 3
    assert [json.loads(call.arguments) for call in answer.tool_calls] == given
    assert answer.malformed == ()
    assert not answer.content


def test_calls_of_lfm2_are_read_as_its_template_writes_them():
    renderer = shipped.renderer_of("lfm2_v2")
    asked = {"role": "user", "content": "Go."}
    given = [
        {"a": 12, "note": 'it\'s "x", [y(z=1)]', "deep": {"b": [1, True, None]}},
        {"a": -1.5, "note": "two\nlines"},
        {},
    ]
    called = [
        {"type": "function", "id": f"call{n}", "function": {"name": "add", "arguments": one}}
        for n, one in enumerate(given)
    ]
    message = {"role": "assistant", "content": "So:", "tool_calls": called}
    shown = renderer.render_text([asked, message], reply=False).split("assistant\n")[1]
    ids = renderer.tokenizer(shown, add_special_tokens=False)["input_ids"]

    answer = renderer.parse(ids)

    assert [call.name for call in answer.tool_calls] == ["add"] * 3
    assert [json.loads(call.arguments) for call in answer.tool_calls] == given
    assert answer.malformed == ()
    assert answer.content.strip() == "So:"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<|tool_call_start|>[add(a=1)]", "the last tool call has no end"),
        ("<|tool_call_end|>", "a tool call ends that has not begun"),
        ("<|tool_call_start|>[add(1)]<|tool_call_end|>", r"expected \[NAME\(key=value"),
        ("<|tool_call_start|>[add(a=open('x'))]<|tool_call_end|>", r"expected \[NAME\(key=value"),
        ("<|tool_call_start|>[add(a=b'x')]<|tool_call_end|>", r"expected \[NAME\(key=value"),
        ("<|tool_call_start|>[add(a=1e999)]<|tool_call_end|>", r"expected \[NAME\(key=value"),
        ("<|tool_call_start|>[add(a=" + "[" * 5000, "the last tool call has no end"),
        (
            "<|tool_call_start|>[add(a=" + "[" * 5000 + "<|tool_call_end|>",
            r"expected \[NAME\(key=value",
        ),
        ("<|tool_call_start|>[add(**a)]<|tool_call_end|>", r"expected \[NAME\(key=value"),
        ("<|tool_call_start|>add<|tool_call_end|>", r"expected \[NAME\(key=value"),
    ],
)
def test_a_broken_call_of_lfm2_is_reported(text, said):
    renderer = shipped.renderer_of("lfm2_v2")

    answer = renderer.parse(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])

    assert answer.tool_calls == ()
    assert re.search(said, answer.malformed[0])


THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
SAID = "<|channel|>final<|message|>So.<|return|>"
PREAMBLE = "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant"
ASKED_ADD = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a":12}<|call|>'
ASKED_FIRST = ' to=functions.add<|channel|>commentary json<|message|>{"a":12}<|call|>'


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (SAID, "", "So.", 0),
        (THOUGHT + SAID, "Hm.", "So.", 0),
        (THOUGHT + THOUGHT + SAID, "Hm.\nHm.", "So.", 0),
        ("<|channel|>analysis<|message|>Hm.<|return|>", "Hm.", "", 0),
        (THOUGHT + ASKED_ADD, "Hm.", "", 1),
        (THOUGHT + ASKED_FIRST, "Hm.", "", 1),
        (THOUGHT + PREAMBLE + ASKED_ADD, "Hm.", "I add.", 1),
        (ASKED_ADD + "<|start|>assistant" + ASKED_ADD, "", "", 2),
        ("So.<|return|>", "", None, 0),
        ("<|channel|>final<|message|>So", "", "So", 0),
        ("<|channel|>final", "", "", 0),
    ],
)
def test_channels_of_gpt_oss_are_thought_answer_and_calls(text, reasoning, content, calls):
    """The forms of the Harmony format's own documentation: a recipient stands in the role or behind the channel."""
    renderer = shipped.renderer_of("gptoss")
    ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]

    answer = renderer.parse(ids, prompt_ids=renderer.render([{"role": "user", "content": "Go."}]))

    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert not answer.reasoning_open
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("add", '{"a":12}')
    ] * calls
    assert answer.malformed == ()


def test_a_call_of_gpt_oss_is_read_as_its_template_writes_it():
    renderer = shipped.renderer_of("gptoss")
    asked = {"role": "user", "content": "Go."}
    given = {"a": 12, "note": 'two\nlines "x"', "deep": {"b": [1, True, None]}}
    called = {"type": "function", "function": {"name": "add", "arguments": given}}
    message = {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [called]}
    chat = renderer.render_text([asked, message], reply=False)
    shown = chat.split("<|start|>assistant", maxsplit=1)[1]

    answer = renderer.parse(renderer.tokenizer(shown, add_special_tokens=False)["input_ids"])

    assert answer.reasoning == "Hm."
    assert [call.name for call in answer.tool_calls] == ["add"]
    assert json.loads(answer.tool_calls[0].arguments) == given


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" to=functions.add<|channel|>commentary", r"add: expected <\|message\|> and arguments"),
        (ASKED_ADD[:-10], "add: expected arguments in JSON"),
        (
            "<|channel|>commentary to=python<|message|>print(1)<|call|>",
            "python: expected arguments",
        ),
    ],
)
def test_a_broken_call_of_gpt_oss_is_reported(text, said):
    renderer = shipped.renderer_of("gptoss")

    answer = renderer.parse(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])

    assert answer.tool_calls == ()
    assert re.search(said, answer.malformed[0])


@pytest.mark.parametrize("text", ["<|channel|>analysis<|message|>Hm", "<|channel|>analysis"])
def test_a_thought_of_gpt_oss_without_an_end_is_open(text):
    renderer = shipped.renderer_of("gptoss")

    answer = renderer.parse(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])

    assert answer.reasoning_open
    assert answer.content == ""


CALLED = "<|tool_call>call:add{a:12}<tool_call|>"


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "is_open"),
    [
        ("<|channel>thought\nHm.\n<channel|>So.<turn|>", "Hm.", "So.", False),
        ("<|channel>thought\n<channel|>So.<turn|>", "", "So.", False),
        (
            "<|channel>thought\nA thought\nof two.\n<channel|>So.",
            "A thought\nof two.",
            "So.",
            False,
        ),
        (f"<|channel>thought\nHm.\n<channel|>{CALLED}<|tool_response>", "Hm.", "", False),
        (f"<|channel>thought\nHm.\n{CALLED}<|tool_response>", "Hm.", "", False),
        ("<|channel>thought\nHm", "Hm", "", True),
        ("So.<turn|>", "", None, False),
    ],
)
def test_a_thought_of_gemma_4_is_apart_from_the_answer(text, reasoning, content, is_open):
    renderer = shipped.renderer_of("gemma4_v5")
    ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]

    answer = renderer.parse(ids, prompt_ids=renderer.render([{"role": "user", "content": "Go."}]))

    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert answer.reasoning_open is is_open
    assert [call.name for call in answer.tool_calls] == ["add"] * (CALLED in text)


def test_a_thought_that_gemma_4_s_prompt_begins_behind_a_result_is_read():
    renderer = shipped.renderer_of("gemma4_v5").with_template_kwargs({"enable_thinking": True})
    call = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {}}}
    asked = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "name": "add", "tool_call_id": "c1"},
    ]
    prompt = renderer.render(asked)
    assert renderer.decode(prompt, skip_special_tokens=False).endswith("<|channel>thought\n")
    ids = renderer.tokenizer("thought of it\n<channel|>So.<turn|>", add_special_tokens=False)

    answer = renderer.parse(ids["input_ids"], prompt_ids=prompt)

    assert (answer.reasoning, answer.content) == ("thought of it", "So.")


def test_a_thought_of_gemma_4_is_shown_in_its_turn_and_gone_behind_the_next_question():
    renderer = shipped.renderer_of("gemma4_v5")
    asked = {"role": "user", "content": "Go."}
    prompt = renderer.render([asked])
    text = "<|channel>thought\nHm.\n<channel|>So.<turn|>"
    ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = renderer.parse(ids, prompt_ids=prompt)
    said = {
        "role": "assistant",
        "content": answer.content,
        "reasoning_content": answer.reasoning,
    }

    assert renderer.render_text([asked, said], reply=False).endswith(text + "\n")
    again = renderer.extend([asked, said], [*prompt, *ids], [asked], ended=True, as_template=True)
    kept = renderer.extend([asked, said], [*prompt, *ids], [asked], ended=True)
    assert "Hm." not in renderer.decode(again.token_ids, skip_special_tokens=False)
    assert again.forked
    assert list(kept.token_ids[: len(prompt) + len(ids)]) == [*prompt, *ids]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<|tool_call>call:add{a:1}", "the last tool call has no end"),
        ("<tool_call|>", "a tool call ends that has not begun"),
        ("<|tool_call>add{a:1}<tool_call|>", r"expected call:NAME\{\.\.\.\} .* got 'add"),
        ('<|tool_call>call:add{a:<|"|>x}<tool_call|>', "expected call:NAME"),
        ("<|tool_call>call:add{a:x}<tool_call|>", "add: expected arguments in JSON"),
    ],
)
def test_a_broken_call_of_gemma_4_is_reported(text, said):
    renderer = shipped.renderer_of("gemma4_v5")

    answer = renderer.parse(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])

    assert answer.tool_calls == ()
    assert re.search(said, answer.malformed[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("add", "expected a JSON object"),
        ("add\n<arg_key>a</arg_key>", "add: expected parameters alone"),
        ("add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value> now", "add: .* got 'now'"),
    ],
)
def test_a_call_of_glm_that_is_broken_or_of_no_tool_is_reported(text, said):
    answer = parsed("hermes", f"<tool_call>{text}</tool_call>")

    assert answer.tool_calls == ()
    assert re.search(said, answer.malformed[0])


def test_a_name_and_arguments_of_mistral_with_marks_for_each():
    from rlhf_data.chat.parsing.mistral import read_mistral
    from rlhf_data.chat.parsing.pieces import Piece

    mark = lambda text: Piece(text, is_mark=True)  # noqa: E731
    read = read_mistral(
        [
            *(Piece("so"), mark("[TOOL_CALLS]"), Piece("add"), mark("[CALL_ID]"), Piece("x1")),
            *(
                mark("[ARGS]"),
                Piece('{"a": 1}'),
                mark("[TOOL_CALLS]"),
                Piece("now"),
                mark("[ARGS]"),
                Piece("{}"),
            ),
        ]
    )

    assert read.content == ["so"]
    assert read.calls == [
        ToolCall(name="add", arguments='{"a": 1}', id="x1"),
        ToolCall(name="now", arguments="{}", id="call_1"),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>{nonsense</tool_call>"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}'),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", "<tool_call>" + "[" * 5000 + "</tool_call>"),
        ("hermes", "</tool_call>"),
        ("hermes", "<tool_call><function=add>x</function></tool_call>"),
        ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {}}'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS]add it"),
        ("llama3", "<|python_tag|>print(1)"),
        ("llama3", '{"name": "add", "parameters": {"a": 1}'),
        ("deepseek", "<\uff5ctool▁call▁begin\uff5c>function"),
        ("deepseek", "<\uff5ctool▁call▁end\uff5c>"),
        ("deepseek", "<\uff5ctool▁call▁begin\uff5c>add<\uff5ctool▁call▁end\uff5c>"),
    ],
)
def test_broken_calls_are_reported_and_never_raised(name, text):
    answer = parsed(name, text)

    assert answer.tool_calls == ()
    assert len(answer.malformed) >= 1
    assert all(answer.malformed)


@pytest.mark.parametrize("name", ["hermes", "thinking", "deepseek", "mistral", "llama3"])
@pytest.mark.parametrize(
    "text", [HERMES_CALL, DEEPSEEK_CALL, '[TOOL_CALLS][{"name": "add"}]', "<think>hm</think>"]
)
def test_marks_that_the_policy_spells_are_text(name, text):
    """Where the tokenizer has a token for a mark, letters that spell it are none."""
    renderer = renderer_of(name)

    answer = renderer.parse(renderer.encode(text))

    assert (answer.tool_calls, answer.malformed, answer.reasoning, answer.content) == (
        (),
        (),
        "",
        None,
    )


@pytest.mark.parametrize("name", ["thinking", "deepseek", "opened thought"])
def test_a_thought_is_read(name):
    answer = parsed(name, "<think>\nhm\n</think>\n\nso")

    assert (answer.reasoning, answer.content, answer.reasoning_open) == ("hm", "so", False)


def test_a_thought_that_the_prompt_began_is_read():
    renderer = renderer_of("opened thought")
    ids = sampled("opened thought", "hm\n</think>\n\nso<|im_end|>")
    prompt = renderer.render([{"role": "user", "content": "What?"}])

    for prompt_ids in (None, prompt):
        answer = renderer.parse(ids, prompt_ids=prompt_ids)
        assert (answer.reasoning, answer.content) == ("hm", "so")


def test_a_begun_thought_without_an_end_is_open():
    renderer = renderer_of("opened thought")

    answer = renderer.parse(sampled("opened thought", "hm hm"))

    assert (answer.reasoning, answer.content, answer.reasoning_open) == ("hm hm", "", True)


def test_a_prompt_that_closed_its_thought_begins_none():
    renderer = renderer_of("opened thought")
    prompt = sampled("opened thought", "<|im_start|>assistant\n<think>\n\n</think>\n\n")

    answer = renderer.parse(sampled("opened thought", "so"), prompt_ids=prompt)

    assert (answer.text, answer.reasoning, answer.content) == ("so", "", None)


def test_a_call_ends_a_thought_that_has_no_end():
    answer = parsed("thinking", "<think>\nI add" + HERMES_CALL)

    assert (answer.reasoning, answer.reasoning_open) == ("I add", False)
    assert [call.name for call in answer.tool_calls] == ["add"]


def test_a_second_thought_is_content():
    answer = parsed("thinking", "<think>a</think>b<think>c</think>")

    assert (answer.reasoning, answer.content) == ("a", "b<think>c</think>")


@pytest.mark.parametrize("name", KINDS)
def test_a_plain_answer_is_its_text(name):
    renderer = renderer_of(name)
    answer = renderer.parse(renderer.encode("The answer is 4"))

    assert (answer.reasoning, answer.content, answer.tool_calls) == (
        "",
        None,
        (),
    ) or name == "opened thought"


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_an_empty_answer(name):
    assert renderer_of(name).parse([]).text == ""


def test_an_answer_is_a_message_of_the_template():
    renderer = renderer_of("thinking")
    answer = parsed("thinking", "<think>\nhm\n</think>\n\nso\n" + HERMES_CALL)

    text = renderer.render_text([{"role": "user", "content": "?"}, answer.message()], reply=False)

    assert "<think>\nhm\n</think>\n\nso" in text
    assert '{"name": "add", "arguments": {"a": 12, "b": 30}}' in text


def test_the_template_decides_before_the_tokens():
    words = ("<tool_call>", "[TOOL_CALLS]", "[THINK]", "[/THINK]")

    assert calls_of(words, "... <tool_call> ...").name == "hermes"
    assert calls_of(words, "").name == "mistral"
    assert calls_of((), "") is None
    assert thoughts_of(words, "<think></think>") == THOUGHTS[1]
    assert thoughts_of((), "<think></think>") == THOUGHTS[0]


def test_an_end_of_a_thought_that_nobody_began_is_content():
    """Only a prompt that is not known may have begun it."""
    ids = sampled("thinking", HERMES_CALL + "</think>so")
    renderer = renderer_of("thinking")

    known, unknown = renderer.parse(ids, prompt_ids=[]), renderer.parse(ids)

    assert ([call.name for call in known.tool_calls], known.reasoning) == (["add"], "")
    assert known.content == "</think>so"
    assert (unknown.tool_calls, unknown.content) == ((), "so")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "integer"}, "[12]", "[12]"),  # JSON, but of another type
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "12", 12),  # int | None
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1, 2]", [1, 2]),
        ({"enum": [1, 2]}, "2", 2),
        ({"type": "string"}, "true", "true"),
        ({}, "12", "12"),
        (True, "12", "12"),  # a schema that allows everything
        ({"type": "number"}, "9" * 5000, "9" * 5000),  # more digits than Python reads
    ],
)
def test_a_value_has_a_type_that_its_schema_allows(schema, text, value):
    from rlhf_data.chat.parsing.blocks import typed_value

    found = typed_value(text, schema)

    assert (found, type(found)) == (value, type(value))
