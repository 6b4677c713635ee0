"""Functions that a script defines itself, copied into a module of their own with all that they use.

The script is not run, so what it computes (a model, a set of rows) cannot be copied: a function that uses such a value
stays where it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_PLAIN_CALLS = frozenset(
    {"compile", "escape", "format", "join", "strip", "dedent", "frozenset", "set", "dict", "tuple"}
)
"""Calls in a value that may be made again when the module is imported: they make a pattern, a text or a collection."""
_HEAVY = ("unsloth", "trl", "vllm")
"""Packages whose import would start more than a function needs."""


class OwnFunctions:
    """Functions of a script that can be copied."""

    def __init__(self, tree: ast.Module, text: str, name: str) -> None:
        """Read the statements of a script.

        Args:
            name: the file of the script, after which the module is named.
        """
        stem = "".join(letter if letter.isalnum() else "_" for letter in Path(name).stem)
        self.module = f"{stem.strip('_').lower() or 'script'}_functions"
        """Name of the module."""
        self._lines = text.splitlines()
        self._bound: dict[str, list[ast.stmt]] = {}
        self._copied: dict[int, ast.stmt] = {}
        for statement in tree.body:
            for bound in _bound_by(statement):
                self._bound.setdefault(bound, []).append(statement)

    def copy(self, name: str) -> str:
        """Copy a function with all that it uses, and return its path; empty if it cannot be copied."""
        found = self._bound.get(name, [])
        if len(found) != 1 or not isinstance(found[0], ast.FunctionDef):
            return ""
        needed: dict[int, ast.stmt] = {}
        left = [name]
        while left:
            for statement in self._bound.get(left.pop(), []):
                if statement.lineno in needed:
                    continue
                if not _is_plain(statement):
                    return ""
                needed[statement.lineno] = statement
                left += _used_by(statement)
        self._copied |= needed
        return f"{self.module}.{name}"

    @property
    def text(self) -> str:
        """The text of the module; empty if nothing was copied."""
        parts = (self._source(self._copied[line]) for line in sorted(self._copied))
        text = "\n\n".join(parts)
        return (
            f'"""Functions copied by rlhf migrate; edit them at will."""\n\n{text}\n'
            if text
            else ""
        )

    def _source(self, statement: ast.stmt) -> str:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(one.lineno for one in decorators)])
        return "\n".join(self._lines[first - 1 : statement.end_lineno])


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (one.asname or one.name.partition(".")[0] for one in statement.names)
    else:
        stored = (one for one in ast.walk(statement) if isinstance(one, ast.Name))
        yield from (one.id for one in stored if isinstance(one.ctx, ast.Store))


def _used_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement takes from the script; those of a function's own are none."""
    nodes = list(ast.walk(statement))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    if not isinstance(statement, ast.FunctionDef):
        return {one.id for one in names}
    own = {one.id for one in names if isinstance(one.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    shared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    return {one.id for one in names} - (own - shared)


def _is_plain(statement: ast.stmt) -> bool:
    """Return whether a statement may be run again without what the script does besides."""
    if isinstance(statement, ast.Import):
        return not any(one.name.startswith(_HEAVY) for one in statement.names)
    if isinstance(statement, ast.ImportFrom):
        return not statement.level and not (statement.module or "").startswith(_HEAVY)
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return True
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [
        one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "")
        for one in calls
    ]
    return isinstance(statement, ast.Assign | ast.AnnAssign) and set(names) <= _PLAIN_CALLS
