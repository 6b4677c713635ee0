"""Values that a Python script gives TRL, under the keys of TRL's YAML files, and what was left out of them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import yaml

from ..table.source import Written
from .arguments import REST, is_named, shown
from .names import Names

_UNSHOWN = "the text does not show its value"
_UNNAMED = "the text does not show which argument it is; give it by its name"
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
            found = ast.literal_eval(self.names.resolved(value))
            yaml.safe_dump(found)  # no file has bytes, complex numbers and ...
        except (ValueError, TypeError, yaml.YAMLError):
            self.leave_out(key, value)
        else:
            self.keys[key] = found

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
