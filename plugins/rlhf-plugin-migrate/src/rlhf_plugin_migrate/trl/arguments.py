"""Arguments of a call in the text of a script, by name: those by position, by keyword, and by ``**`` where it is
written out."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from .names import Names, last_name

REST = "**"
"""Name of arguments that the text does not show."""
_TOKEN = re.compile(r"""((?<![a-z_])(?:hub_)?token['"]?\s*[=:,]\s*)(['"]).*?\2""")


def arguments_of(
    call: ast.expr, positions: Sequence[str], names: Names, *, keeps_none: bool = False
) -> list[tuple[str, ast.expr]]:
    """Return the arguments of a call with their names, each name once; none for what is no call.

    One that no position names is ``argument N``, and ``**`` that the text does not show is kept under that name, as
    often as there are such.

    Args:
        positions: names of the first arguments, in order.
        keeps_none: an argument that is None is kept; else it is as one left out.
    """
    if not isinstance(call, ast.Call):
        return []
    found: list[tuple[str, ast.expr]] = []
    is_known = True
    for number, value in enumerate(call.args, 1):
        is_known = is_known and not isinstance(value, ast.Starred)
        has_name = is_known and number <= len(positions)
        found.append((positions[number - 1] if has_name else f"argument {number}", value))
    for one in call.keywords:
        found += [(one.arg, one.value)] if one.arg else _written_out(one.value, names)
    last = {name: index for index, (name, _) in enumerate(found)}
    return [
        (name, value)
        for index, (name, value) in enumerate(found)
        if name == REST or (last[name] == index and (keeps_none or not is_none(value, names)))
    ]


def is_named(name: str) -> bool:
    """Return whether the text shows which argument it is."""
    return name != REST and not name.startswith("argument ")


def is_none(value: ast.expr, names: Names) -> bool:
    """Return whether a value is None."""
    found = names.resolved(value)
    return isinstance(found, ast.Constant) and found.value is None


def called(value: ast.expr) -> str:
    """Return the last name of what is called; empty for what is no call."""
    return last_name(value.func) if isinstance(value, ast.Call) else ""


def text_of(value: ast.expr | None) -> str:
    """Return a text that is written out; empty for whatever else."""
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def shown(value: ast.AST) -> str:
    """Return the text of an expression or a statement in one line, without tokens of services."""
    return _TOKEN.sub(r"\1...", " ".join(ast.unparse(value).split()))


def _written_out(value: ast.expr, names: Names) -> list[tuple[str, ast.expr]]:
    """Return the arguments that ``**value`` gives."""
    found = names.resolved(value)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.BitOr):
        return [*_written_out(found.left, names), *_written_out(found.right, names)]
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id == "dict":
        given = [*found.args, *(one.value for one in found.keywords if not one.arg)]
        named = [(one.arg, one.value) for one in found.keywords if one.arg]
        return [*(pair for one in given for pair in _written_out(one, names)), *named]
    if not isinstance(found, ast.Dict):
        return [(REST, value)]
    pairs: list[tuple[str, ast.expr]] = []
    for key, one in zip(found.keys, found.values, strict=True):
        name = text_of(names.resolved(key)) if key is not None else ""
        if key is None:
            pairs += _written_out(one, names)
        elif name:
            pairs.append((name, one))
        else:
            alone = ast.Dict(keys=[key], values=[one])
            pairs.append((REST, ast.copy_location(alone, one)))
    return pairs
