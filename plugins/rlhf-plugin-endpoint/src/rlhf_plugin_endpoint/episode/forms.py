"""Grammars of the forms that clients demand, in the words of the model's chat template.

How a template writes a call is found by having it write one, and reading it back: no family is known by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_core import DataError
from rlhf_core.contracts import Message, Renderer

from ..dialects.answer_form import AnswerForm
from ..dialects.problems import RequestProblem

_NAME = "probed_function"
_ARGUMENTS = {"probed_key": "probed_value"}
_ASKED: Message = {"role": "user", "content": "Hello"}
_CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00000",
            "type": "function",
            "function": {"name": _NAME, "arguments": _ARGUMENTS},
        }
    ],
}
_ANSWERED: Message = {
    "role": "tool",
    "name": _NAME,
    "tool_call_id": "call00000",
    "content": "1",
}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "",
        "parameters": {"type": "object", "properties": {"probed_key": {"type": "string"}}},
    },
}


_WORD = re.compile(r"<\[(\d+)\]>")
"""Control word in a grammar."""


class CallSyntax(NamedTuple):
    """Pieces of a grammar that a template writes around the name and the arguments of a call."""

    before: str
    between: str
    after: str


def grammar_of(form: AnswerForm, renderer: Renderer, prompt_ids: Sequence[int]) -> str:
    """Return the grammar of the answers of a form.

    Args:
        prompt_ids: tokens that the engine reads.

    Raises:
        RequestProblem: the prompt has begun a thought, or it cannot be told how the template writes calls, or where
            one begins in free text.
    """
    if form.free:
        return _free_until_called(form, renderer)
    probe = json.dumps(_ARGUMENTS)
    read = renderer.parse(renderer.encode(probe), prompt_ids=prompt_ids)
    if (read.text if read.content is None else read.content) != probe:
        raise RequestProblem(
            "the chat template begins the answer with a thought, which has no form; ask without thoughts, as by "
            'chat_template_kwargs {"enable_thinking": false}',
            code="form_unsupported",
        )
    rules = []
    if form.schema is not None:
        rules.append(("answer", _json(form.schema)))
    if form.calls:
        syntax = call_syntax(renderer)
        if syntax is None:
            raise RequestProblem(
                "it cannot be told how the model's chat template writes the call of a tool, so none can be forced",
                code="form_unsupported",
                parameter="tool_choice" if form.schema is None else "tools",
            )
        rules += [(f"call{n}", _call(tool, syntax)) for n, tool in enumerate(form.calls)]
    start = " | ".join(name for name, _ in rules)
    return "\n".join([f"start: {start}", *(f"{name}: {rule}" for name, rule in rules)])


def _free_until_called(form: AnswerForm, renderer: Renderer) -> str:
    """Return the grammar of any text, thoughts included, in which each call is one of the form's.

    A call begins with a control word, so every other token leaves all tokens allowed, and is an action as in an answer
    without a form.
    """
    syntax = call_syntax(renderer)
    begins = None if syntax is None else _WORD.search(syntax.before)
    if syntax is None or begins is None or int(begins[1]) in _answer_ids(renderer):
        raise RequestProblem(
            "a tool is strict, and the model's chat template begins a call with no control word of its own, so nobody "
            "could tell where the schema holds. Send strict false, or force a tool with tool_choice",
            code="form_unsupported",
            parameter="tools",
        )
    # What the template writes in front of the word is text as any other.
    within = syntax._replace(before=syntax.before[begins.start() :])
    rules = [(f"call{n}", _call(tool, within)) for n, tool in enumerate(form.calls)]
    calls = " | ".join(name for name, _ in rules)
    start = f"other* (({calls}) other*)?" if form.once else f"(other | {calls})*"
    return "\n".join(
        [
            f"start: {start}",
            f"other: <[^{begins[1]}]>",
            *(f"{name}: {rule}" for name, rule in rules),
        ]
    )


def _answer_ids(renderer: Renderer) -> set[int]:
    """Return the tokens with which the template writes an answer that calls nothing."""
    asked = renderer.render([_ASKED], [_TOOL])
    whole = renderer.render([_ASKED, {"role": "assistant", "content": "probed_answer"}], [_TOOL])
    return set(whole[len(asked) :])


def call_syntax(renderer: Renderer) -> CallSyntax | None:
    """Return how the renderer's template writes a call; None: not in one piece around name and JSON arguments."""
    try:
        asked = renderer.render([_ASKED], [_TOOL])
        whole = renderer.render([_ASKED, _CALLED, _ANSWERED], [_TOOL])
    except DataError:
        return None
    if whole[: len(asked)] != asked:
        return None
    behind = whole[len(asked) :]
    for end in range(1, len(behind) + 1):
        read = renderer.parse(behind[:end], prompt_ids=asked, tools=[_TOOL])
        if len(read.tool_calls) == 1 and not read.malformed:
            (call,) = read.tool_calls
            is_whole = call.name == _NAME and json.loads(call.arguments) == _ARGUMENTS
            return _around(behind[:end], renderer) if is_whole else None
    return None


def _around(token_ids: Sequence[int], renderer: Renderer) -> CallSyntax | None:
    """Return what stands around the name and the arguments in the tokens of a call."""
    shown = renderer.decode_batch([[t] for t in token_ids], skip_special_tokens=False)
    plain = renderer.decode_batch([[t] for t in token_ids], skip_special_tokens=True)
    text = "".join(shown)
    name, key = text.find(_NAME), text.find('"probed_key"')
    start, end = text.rfind("{", 0, max(key, 0)), text.find("}", key) + 1
    if not 0 <= name < start < key < end:
        return None
    try:
        if json.loads(text[start:end]) != _ARGUMENTS:
            return None
    except json.JSONDecodeError:
        return None
    spans = ((0, name), (name + len(_NAME), start), (end, len(text)))
    return CallSyntax(*(_literal(token_ids, shown, plain, first, last) for first, last in spans))


def _literal(
    token_ids: Sequence[int], shown: Sequence[str], plain: Sequence[str], first: int, last: int
) -> str:
    """Return the grammar of the characters from ``first`` to ``last``: control words by their ids, others as text."""
    pieces: list[str] = []
    text, place = "", 0
    for token, whole, without in zip(token_ids, shown, plain, strict=True):
        part = whole[max(0, first - place) : max(0, last - place)]
        place += len(whole)
        # llguidance takes added tokens such as <tool_call> for special ones, whatever the tokenizer says of them.
        is_word = not without or (len(whole) > 2 and whole[0] == "<" and whole[-1] == ">")
        if part and part == whole and is_word:
            pieces += [json.dumps(text)] * bool(text) + [f"<[{token}]>"]
            text = ""
        else:
            text += part
    return " ".join(pieces + [json.dumps(text)] * bool(text))


def _call(tool: Mapping[str, Any], syntax: CallSyntax) -> str:
    function = tool["function"]
    parts = (
        syntax.before,
        json.dumps(function["name"]),
        syntax.between,
        _json(function["parameters"]),
        syntax.after,
    )
    return " ".join(part for part in parts if part)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps(schema)}"
