"""Tool calls of answers by three parsers, on the cases of our parser's tests: ours, Transformers', and vLLM's.

    PYTHONPATH=. python benchmarks/answer_parsers.py

Transformers (``tokenizer.parse_response``) reads by a template of the model, which few models bring; so the templates
stand here. vLLM's parsers are those that its option ``--tool-call-parser`` names. Two parsers agree on a case where
they find the same calls, with arguments that are equal as JSON. On a broken call ours finds none and reports it; the
other agrees where it finds none, be it by an error or as text.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.libs.data.chat.parsing import test_parser as cases
from tests.libs.data.chat.zoo import renderer_of, tokenizer_of

Calls = list[tuple[str, Any]]
Parser = Callable[[str, list[int]], Calls]

FUNCTION = {"type": "function", "function": "{content}"}
CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
DEEPSEEK_OPEN = (
    r"<\uff5ctool▁call▁begin\uff5c>(?:function<\uff5ctool▁sep\uff5c>)?(?P<name>[^\n<]+)"
    r"(?:\n```json\n|<\uff5ctool▁sep\uff5c>)"
)
FIELDS: dict[str, dict[str, Any]] = {
    "hermes": {
        "open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True, "transform": FUNCTION,
    },
    "mistral": {
        "open": "[TOOL_CALLS]", "content": "json", "transform": FUNCTION, "transform_each": True,
    },
    "deepseek": {
        "open_pattern": DEEPSEEK_OPEN, "close_pattern": r"(?:\n```)?<\uff5ctool▁call▁end\uff5c>",
        "content": "json", "repeats": True, "transform": CALL,
    },
    "llama3": {
        "open_pattern": r"<\|python_tag\|>|; (?=\{)|^(?=\{)", "close_pattern": r"(?=; \{)|<\|eot_id\|>",
        "content": "json", "repeats": True,
        "transform": {
            "type": "function", "function": {"name": "{content.name}", "arguments": "{content.parameters}"},
        },
    },
}  # fmt: skip
FIELDS["thinking"] = FIELDS["hermes"]
VLLM = {
    "hermes": ("hermes",),
    "thinking": ("hermes",),
    "mistral": ("mistral",),
    "llama3": ("llama3_json",),
    "deepseek": ("deepseek_v3", "deepseek_v31"),
}


renderer = cache(renderer_of)


def text_of(name: str, ids: list[int]) -> str:
    """Return an answer's text with its marks, as parsers of text need it."""
    text: str = tokenizer_of(name).decode(ids, skip_special_tokens=False)
    return text


def ours(name: str, ids: list[int]) -> Calls:
    calls = renderer(name).parse(ids).tool_calls
    return [(call.name, json.loads(call.arguments)) for call in calls]


def transformers(name: str, ids: list[int]) -> Calls:
    template = {
        "start_anchor": "never written",
        "fields": {"content": {}, "tool_calls": FIELDS[name]},
    }
    message = tokenizer_of(name).parse_response(text_of(name, ids), template, prefix="")
    found = [call["function"] for call in message.get("tool_calls", [])]
    return [(call["name"], call["arguments"]) for call in found]


@cache
def vllm_parser(name: str, parser: str) -> Any:
    from vllm.tool_parsers import ToolParserManager

    return ToolParserManager.get_tool_parser(parser)(tokenizer_of(name))


def vllm(name: str, ids: list[int]) -> Calls:
    """Calls by the first of the family's parsers that finds any."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest(model="policy", messages=[])
    text = text_of(name, ids)
    for parser in VLLM[name]:
        found = vllm_parser(name, parser).extract_tool_calls(text, request).tool_calls
        if found:
            return [(call.function.name, json.loads(call.function.arguments)) for call in found]
    return []


def params(test: Callable[..., None]) -> list[tuple[Any, ...]]:
    """Return the cases of a parametrized test."""
    marks = test.pytestmark  # type: ignore[attr-defined]
    return [case for mark in marks for case in mark.args[1]]


def tried(parser: Parser, name: str, ids: list[int]) -> Calls | str:
    """Return the calls, or the name of the error that the parser ended with."""
    try:
        return parser(name, ids)
    except Exception as error:
        return type(error).__name__


def compare(label: str, pairs: list[tuple[str, list[int], Calls]]) -> None:
    """Print on how many answers each parser finds the expected calls, and where it does not."""
    for parser in (ours, transformers, vllm):
        found = [tried(parser, name, ids) for name, ids, _ in pairs]
        good = [
            one == wanted or (isinstance(one, str) and not wanted)
            for one, (_, _, wanted) in zip(found, pairs, strict=True)
        ]
        print(f"{label}: {parser.__name__} {sum(good)} of {len(pairs)}")
        for one, (name, ids, _), is_good in zip(found, pairs, good, strict=True):
            if not is_good:
                print(f"    {name}: {text_of(name, ids)[:70]!r}: {one!r:.90}")
        errors = Counter(one for one in found if isinstance(one, str))
        if errors:
            print(f"    ended with an error, the rest of the answer lost: {dict(errors)}")


def main() -> None:
    logging.disable(logging.ERROR)
    written = [
        (
            name,
            cases.sampled(name, text),
            [(call, json.loads(arguments)) for call, arguments in calls],
        )
        for name, text, _, calls in params(cases.test_calls_are_read_as_they_were_written)
    ]
    broken = params(cases.test_broken_calls_are_reported_and_never_raised)
    texts, names = (
        mark.args[1] for mark in cases.test_marks_that_the_policy_spells_are_text.pytestmark
    )
    compare("calls", written)
    compare("broken calls", [(name, cases.sampled(name, text), []) for name, text in broken])
    # Text alone does not tell a mark from letters that spell it, so no parser of text can pass all of these.
    spelled = [(name, renderer(name).encode(text), []) for name in names for text in texts]
    compare("marks that are spelled", spelled)
    ids = cases.sampled("hermes", cases.HERMES_CALL)
    for parser in (ours, transformers, vllm):
        start = time.perf_counter()
        for _ in range(200):
            parser("hermes", ids)
        print(f"{parser.__name__}: {1e6 * (time.perf_counter() - start) / 200:.0f} us a call")


if __name__ == "__main__":
    main()
