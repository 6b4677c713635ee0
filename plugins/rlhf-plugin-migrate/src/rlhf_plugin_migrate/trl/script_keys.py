"""Values that a Python script gives TRL, under the keys of TRL's YAML files, and what was left out of them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..table.source import Written
from .arguments import REST, is_named, shown
from .names import Names

_UNSHOWN = "the text does not show its value"
_UNNAMED = "the text does not show which argument it is; give it by its name"
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_DEPTH = 8
"""Operations within operations that are computed at most: names may be bound to each other."""
_LENGTH = 60
"""Characters of a script that the report repeats at most."""


@dataclass(slots=True)
class PythonScript:
    """Values that a script gives TRL, by the keys of TRL's scripts."""

    script: str
    """The script of TRL that trains so: ``grpo``, ``sft`` or ``dpo``."""
    names: Names
    """Names of the script, with their values."""
    keys: dict[str, object] = field(default_factory=dict)
    left_out: list[Written] = field(default_factory=list)
    """Arguments whose values the text does not show."""
    files: dict[str, str] = field(default_factory=dict)
    """Text of each module that the configuration needs beside it, by the file's name."""

    @property
    def text(self) -> str:
        """The keys as the text of a YAML file."""
        text: str = yaml.safe_dump(self.keys, sort_keys=False)
        return text

    def set(self, key: str, value: ast.expr) -> None:
        """Set a key to a literal, or to one that a name is bound to; anything else is left out."""
        if not is_named(key):
            self.leave_out(key, value)
            return
        try:
            found = ast.literal_eval(self._computed(value))
            yaml.safe_dump(found)  # no file has bytes, complex numbers and ...
        except (ValueError, TypeError, yaml.YAMLError):
            self.leave_out(key, value)
        else:
            self.keys[key] = found

    def _computed(self, value: ast.expr, depth: int = 0) -> ast.expr:
        """Return what a name is bound to, and the number that a sum, difference or product of numbers is."""
        found = self.names.resolved(value)
        if not isinstance(found, ast.BinOp) or type(found.op) not in _OPERATIONS or depth > _DEPTH:
            return found
        sides = [self._computed(side, depth + 1) for side in (found.left, found.right)]
        numbers = [one.value for one in sides if isinstance(one, ast.Constant)]
        if len(numbers) < 2 or not all(type(number) in (int, float) for number in numbers):
            return found
        return ast.copy_location(ast.Constant(_OPERATIONS[type(found.op)](*numbers)), value)

    def leave_out(self, key: str, value: ast.expr, problem: str = "") -> None:
        """Keep an argument for the report.

        Args:
            problem: why it sets nothing; empty: the text does not show it.
        """
        last = key.rpartition(", ")[2]
        is_unnamed = last != REST and not is_named(last)
        why = problem or (_UNNAMED if is_unnamed else _UNSHOWN)
        self._report(f"{key}: {shown(value):.{_LENGTH}}", value.lineno, why)

    def leave_out_node(self, node: ast.expr | ast.stmt, problem: str) -> None:
        """Keep a statement, or a call, for the report, once."""
        self._report(f"{shown(node):.{_LENGTH}}", node.lineno, problem)

    def _report(self, text: str, line: int, problem: str) -> None:
        one = Written(text, (), f"line {line}: {problem}")
        if one not in self.left_out:
            self.left_out.append(one)
