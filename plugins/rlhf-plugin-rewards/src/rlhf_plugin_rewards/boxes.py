"""Answers in boxes, as models write them: ``\\boxed{42}``."""

from __future__ import annotations

import re
from typing import NamedTuple

from .readings import as_latex

_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|\{|\}", re.DOTALL)
_MATH_BORDER = r"(?:\s|\$|\\\(|\\\)|\\\[|\\\])*"
_BETWEEN_VALUES = re.compile(rf"{_MATH_BORDER}(?:,?\s*and\b|,?\s*or\b|,){_MATH_BORDER}")
_PERCENT = re.compile(rf"{_MATH_BORDER}(?:\\?%|percent\b)", re.IGNORECASE)


class _Box(NamedTuple):
    start: int
    end: int
    content: str


def last_boxed(text: str) -> str | None:
    """Return the last box of a text, as LaTeX for math-verify (``as_latex``); None if no box has something in it.

    Boxes with nothing but a comma, "and" or "or" between them are one answer of several values. Earlier boxes are what
    the text took back: math-verify alone would make a set of all boxes. A percent sign behind the box stays with it. A
    box without its closing brace, as a truncated response has it, is none.
    """
    boxes = _boxes(text)
    if not boxes:
        return None
    first = len(boxes) - 1
    while first and _BETWEEN_VALUES.fullmatch(text, boxes[first - 1].end, boxes[first].start):
        first -= 1
    contents = [box.content for box in boxes[first:]]
    values = [rf"\boxed{{{as_latex(content) or content}}}" for content in contents]
    if len(values) > 1:
        return ", ".join(values)
    return f"${values[0]}$" + ("%" if _PERCENT.match(text, boxes[-1].end) else "")


def _boxes(text: str) -> list[_Box]:
    """Return the boxes with something in them, in their order; of a box in a box, the outer one."""
    boxes: list[_Box] = []
    groups: list[re.Match[str] | None] = []
    """Braces that are open: the beginning of a box, or None."""
    for token in _TOKEN.finditer(text):
        if token[0] == "}":
            opened = groups.pop() if groups else None
            content = text[opened.end() : token.start()].strip() if opened else ""
            if opened and content:
                while boxes and boxes[-1].start > opened.start():
                    boxes.pop()
                boxes.append(_Box(opened.start(), token.end(), content))
        elif token[0].endswith("{") and token[0] != r"\{":
            groups.append(token if token[0].startswith("\\") else None)
    return boxes
