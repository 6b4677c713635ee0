"""Tool calls of LFM2: a list of calls in Python's spelling, ``[NAME(key=value)]``, between marks. Nothing is run."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any

from rlhf_core.contracts.environment import ToolCall

from .json_calls import call_of
from .pieces import CallsRead, Piece, calls_between, text_of

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"

_JSON_NAMES = {"true": True, "false": False, "null": None}


def read_lfm2(pieces: Sequence[Piece]) -> CallsRead:
    """Return the calls between ``<|tool_call_start|>`` and ``<|tool_call_end|>``."""
    return calls_between(
        pieces, OPEN, CLOSE, lambda inside, number: _calls(text_of(inside), number)
    )


def _calls(text: str, number: int) -> list[ToolCall | str]:
    """Return the calls in a text; a reason where there are none, or one is no call with values by name."""
    try:
        made = ast.parse(text.strip(), mode="eval").body
        calls = made.elts if isinstance(made, ast.List) else [made]
        found = [_call(one) for one in calls]
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return [f"expected [NAME(key=value, ...)], got {text[:80]!r}"]
    return [
        call_of(name, arguments, f"call_{place}")
        for place, (name, arguments) in enumerate(found, start=number)
    ]


def _call(node: ast.expr) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args or any(one.arg is None for one in node.keywords):
        raise ValueError("no call with values by name")
    arguments = {str(one.arg): _value(one.value) for one in node.keywords}
    return ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, whose truth values may be JSON's too; a model writes either."""
    match node:
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(one) for one in elements]
        case ast.Dict(keys=keys, values=values):
            return {
                str(_value(key)): _value(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
    return ast.literal_eval(node)
