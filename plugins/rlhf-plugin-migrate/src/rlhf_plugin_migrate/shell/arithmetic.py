"""Whole numbers that a script computes, as bash does between ``$((`` and ``))``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

_SIGIL = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_LIMIT = 2**63
"""Beyond it bash's numbers wrap around."""


def computed(text: str, variables: Mapping[str, Sequence[str]]) -> int | None:
    """Return the value of an expression with ``+ - * / %`` and brackets; None if it has anything else.

    Args:
        variables: words of each variable; a variable may be the name of another, or an expression, as in bash.
    """
    return _value(text, variables, depth=0)


def _value(text: str, variables: Mapping[str, Sequence[str]], depth: int) -> int | None:
    try:
        tree = ast.parse(" ".join(_SIGIL.sub(r"\1", text).split()), mode="eval")
    except SyntaxError:
        return None
    return _of(tree.body, variables, depth)


def _of(node: ast.expr, variables: Mapping[str, Sequence[str]], depth: int) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        words = variables.get(node.id, ())
        is_known = len(words) == 1 and depth < 8
        return _value(words[0], variables, depth + 1) if is_known else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _of(node.operand, variables, depth)
        return number if number is None or isinstance(node.op, ast.UAdd) else -number
    if isinstance(node, ast.BinOp):
        left, right = (_of(side, variables, depth) for side in (node.left, node.right))
        if left is not None and right is not None:
            return _combined(node.op, left, right)
    return None


def _combined(op: ast.operator, left: int, right: int) -> int | None:
    """Return what two numbers give; a quotient is cut towards 0, and a remainder has the sign of the left side."""
    found: int | None = None
    if isinstance(op, ast.Add):
        found = left + right
    elif isinstance(op, ast.Sub):
        found = left - right
    elif isinstance(op, ast.Mult):
        found = left * right
    elif isinstance(op, ast.Div | ast.Mod) and right:
        sign = 1 if (left < 0) == (right < 0) else -1
        quotient = sign * (abs(left) // abs(right))
        found = quotient if isinstance(op, ast.Div) else left - quotient * right
    return found if found is not None and abs(found) < _LIMIT else None
