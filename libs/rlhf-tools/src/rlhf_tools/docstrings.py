"""Docstrings as descriptions for a policy: the text before the sections, and a line for each argument.

Google's style is read: a section ``Args:`` with ``name: text`` or ``name (type): text``, further lines indented.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from itertools import pairwise

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?|Attributes|Warnings?|Source):\s*"
)
_ARGUMENT = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A docstring in parts."""

    text: str
    """Everything before the first section, as paragraphs of one line each."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Description of each argument that the docstring describes, on one line."""


def described(docstring: str | None) -> Description:
    """Return the parts of a docstring; without one, an empty text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    starts = [index for index, line in enumerate(lines) if _SECTION.fullmatch(line)]
    head = lines[: starts[0]] if starts else lines
    arguments: dict[str, str] = {}
    for start, end in pairwise([*starts, len(lines)]):
        if lines[start].split(":")[0] in ("Args", "Arguments", "Parameters"):
            arguments |= _arguments(lines[start + 1 : end])
    paragraphs = "\n".join(head).strip().split("\n\n")
    text = "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return Description(text=text, arguments=arguments)


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    body = inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
    name = ""
    for line in body:
        match = _ARGUMENT.fullmatch(line)
        if match:
            name = match[1]
            found[name] = match[2].strip()
        elif name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
