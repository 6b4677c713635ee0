"""Tests of a script, such as ``[ "$X" = 1 ]``, where their words are known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_TESTS = {"[": "]", "[[": "]]", "test": ""}


def is_test(words: Sequence[str]) -> bool:
    """Return whether a command is a test."""
    return bool(words) and (words[1:2] if words[0] == "!" else words[:1])[0] in _TESTS


def holds(words: Sequence[str]) -> bool | None:
    """Return whether a test holds; None if only a shell could say."""
    if words[:1] == ["!"]:
        found = holds(words[1:])
        return None if found is None else not found
    closing = _TESTS[words[0]]
    inside = list(words[1:])
    if closing:
        if inside[-1:] != [closing]:
            return None
        inside.pop()
    if any(letter in word for word in inside for letter in "$`"):
        return None
    if len(inside) == 2 and inside[0] in ("-z", "-n"):
        return (inside[1] == "") == (inside[0] == "-z")
    if len(inside) == 3:
        return _compared(*inside)
    return None


def _compared(left: str, how: str, right: str) -> bool | None:
    if how in ("=", "==", "!="):
        is_pattern = any(letter in right for letter in "*?[")
        return None if is_pattern else (left == right) == (how != "!=")
    if how in _NUMBERS and all(side.lstrip("-").isdecimal() for side in (left, right)):
        return _NUMBERS[how](int(left), int(right))
    return None


def joined(verdicts: Sequence[bool | None], joints: Sequence[str]) -> bool | None:
    """Return whether tests with ``&&``, or with ``||``, between them hold together; None if only a shell could say.

    Args:
        joints: what stands between the tests, one fewer than these.
    """
    if not verdicts:
        return None
    if set(joints) <= {"&&"}:
        return False if False in verdicts else None if None in verdicts else True
    if set(joints) <= {"||"}:
        return True if True in verdicts else None if None in verdicts else False
    return None
