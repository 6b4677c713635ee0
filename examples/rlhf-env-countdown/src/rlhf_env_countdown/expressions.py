"""Expressions of whole numbers, + - * / and parentheses: read and computed exactly, without ``eval``.

    sum     = product (("+" | "-") product)*
    product = factor (("*" | "/") factor)*
    factor  = number | "(" sum ")"

Division gives fractions. There is no sign before a number, since the game has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 200
"""Longest expression; it bounds the depth of parentheses too."""
_MAX_DIGITS = 9

_TOKEN = re.compile(r"\s*(\d+|[-+*/()])", flags=re.ASCII)
_SPELLINGS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A well-formed expression."""

    value: Fraction
    numbers: tuple[int, ...]
    """Numbers in it, in the order of the text."""


def parse(text: str) -> Expression:
    """Return the value and the numbers of an expression.

    Raises:
        ValueError: it is none, is too long, or divides by zero.
    """
    reader = _Reader(_tokens(text))
    value = reader.sum()
    if reader.tokens:
        raise ValueError(f"{reader.tokens[-1]!r} is where the expression should end")
    return Expression(value=value, numbers=tuple(reader.numbers))


def _tokens(text: str) -> list[str]:
    """Return the tokens of a text, the first one last."""
    plain = text.translate(_SPELLINGS).strip()
    if len(plain) > MAX_CHARACTERS:
        raise ValueError(f"{len(plain)} characters; expected at most {MAX_CHARACTERS}")
    found: list[str] = []
    position = 0
    while position < len(plain):
        match = _TOKEN.match(plain, position)
        if match is None:
            raise ValueError(f"{plain[position]!r} is no part of an expression")
        found.append(match[1])
        position = match.end()
    return found[::-1]


class _Reader:
    """Takes tokens from the end of a list, by the grammar above."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.numbers: list[int] = []

    def sum(self) -> Fraction:
        value = self.product()
        while self._next_is("+", "-"):
            operator, right = self.tokens.pop(), self.product()
            value = value + right if operator == "+" else value - right
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while self._next_is("*", "/"):
            operator, right = self.tokens.pop(), self.factor()
            if operator == "/" and not right:
                raise ValueError("division by zero")
            value = value * right if operator == "*" else value / right
        return value

    def factor(self) -> Fraction:
        if not self.tokens:
            raise ValueError("the expression ends too early")
        token = self.tokens.pop()
        if token == "(":
            value = self.sum()
            if not self._next_is(")"):
                raise ValueError("a parenthesis is not closed")
            self.tokens.pop()
            return value
        if not token.isdigit() or len(token) > _MAX_DIGITS:
            raise ValueError(f"{token[:12]!r} is where a number should be")
        self.numbers.append(int(token))
        return Fraction(self.numbers[-1])

    def _next_is(self, *tokens: str) -> bool:
        return bool(self.tokens) and self.tokens[-1] in tokens
