"""Final answers as people write them, read whole: ``$1,234``, ``18 dollars``, ``2 1/2``, ``x = -1 or x = 2``.

math-verify takes the last number out of plain text: 3 of ``2\\sqrt{3}``, 2 of ``(1, 2]``, and it reads ``18 dollars``
in a box as a product of letters. What stands in a column of right answers or in a box is one answer, so both are given
to it as LaTeX, with what LaTeX has no word for rewritten here.
"""

from __future__ import annotations

import re

_SIGNS = {0x2212: "-", 0xD7: "x", 0x221E: r"\infty "}
"""A minus, a cross and infinity, as word processors write them."""
_BORDERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_JOINS = frozenset({"and", "or"})
_NAMES_OF_MATH = frozenset({"infinity", "inf", "sqrt", "percent", "percentage", "pct"})

_ANNOUNCED = re.compile(r"\b(?:answer|result|solution)\s*(?:is|are|:|=)[\s:]*(?=\S)", re.I)
_CURRENCY = re.compile(r"[€£¥₹]\s*(?=-?\.?\d)|(?<=\d)\s*[€£¥₹]")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(?:pi|ln|log|sin|cos|tan)(?![A-Za-z])")
_INFINITY = re.compile(r"(?<![\\A-Za-z])oo(?![A-Za-z])")
_SPACED_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(?: |\\,|\\ |\u00a0|\u202f)\d{3})+(?:\.\d+)?")
_MIXED_NUMBER = re.compile(r"(-?\d+) +(\d+)/(\d+)")
_SCIENTIFIC = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+))[eE]\+?(-?\d+)")
_TIMES_POWER = re.compile(r"(?<=\d)\s*x\s*10\s*\^\s*(-?\d+|\{[^{}]*\})")
_UNITS = re.compile(
    r"(?<=[\d}])(?:\s+(?!(?:and|or|percent|percentage|pct)\b)(?:[A-Za-z]{2,}|[mgshL])\.?"
    r"(?:\s*\^?\{?[23²³]\}?)?(?:\s*/\s*[A-Za-z]+)?)+$"
)

_TEXT_ANSWER = re.compile(r"[A-Za-z]+(?:[ '-]+[A-Za-z]+)*")
_WORD = re.compile(r"(?<![\\A-Za-z\d{_^)])[A-Za-z]{3,}(?![A-Za-z])")
_OPERATOR = re.compile(r"[+*^=<>\\(]")
_MATH = re.compile(r"\$([^$]+)\$")
_ONE_NUMBER = re.compile(
    r"(?<![\w.,^])-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?(?:\s*\\?%)?(?!\w)"
)


def as_latex(answer: str) -> str | None:
    """Return an answer as LaTeX that says all of it; None for a sentence in which more than one thing may be meant.

    Units behind a number, signs of currencies and what announces an answer ("the answer is") are left out. Words are
    one ``\\text{}``, so that their letters are no product. A sentence is the only expression or number in it.
    """
    text = _behind_the_last(_ANNOUNCED, answer.strip()).strip()
    text = _without_borders(text.removesuffix(".").rstrip())
    if _TEXT_ANSWER.fullmatch(text):
        return rf"\text{{{text}}}" if _words(text) else _rewritten(text)
    rewritten = _rewritten(text)
    return _of_sentence(text) if _is_sentence(rewritten) else rewritten


def _behind_the_last(pattern: re.Pattern[str], text: str) -> str:
    """Return what stands behind the last match; all where there is none."""
    end = max((match.end() for match in pattern.finditer(text)), default=0)
    return text[end:]


def _without_borders(text: str) -> str:
    for left, right in _BORDERS:
        inner = text.removeprefix(left).removesuffix(right)
        is_inside = len(text) == len(left) + len(inner) + len(right)
        if is_inside and left not in inner and right not in inner:
            return inner.strip()
    return text


def _rewritten(text: str) -> str:
    text = _CURRENCY.sub("", text.translate(_SIGNS))
    text = _FUNCTION.sub(lambda name: "\\" + name[0], text)
    text = _INFINITY.sub(r"\\infty", text)
    text = _TIMES_POWER.sub(r" \\times 10^\1", text)
    text = _UNITS.sub("", text)
    if _SPACED_THOUSANDS.fullmatch(text):
        return re.sub(r"[^-+\d.]", "", text)
    if mixed := _MIXED_NUMBER.fullmatch(text):
        return r"{}\frac{{{}}}{{{}}}".format(*mixed.groups())
    if power := _SCIENTIFIC.fullmatch(text):
        return r"{} \times 10^{{{}}}".format(*power.groups())
    return text


def _words(text: str) -> list[str]:
    """Return what can only be words: three letters and more, neither joined values nor names of mathematics."""
    return [word for word in _WORD.findall(text) if word.lower() not in _JOINS | _NAMES_OF_MATH]


def _is_sentence(text: str) -> bool:
    """Return whether words stand around numbers or expressions; a list of words has neither."""
    outside = _MATH.sub("", text)
    if outside == text and not re.search(r"\d", text):
        return False
    number = len(_words(outside))
    return number > 1 or (number == 1 and not _OPERATOR.search(outside))


def _of_sentence(text: str) -> str | None:
    for expression in (_MATH, _ONE_NUMBER):
        found = [match.group(match.lastindex or 0) for match in expression.finditer(text)]
        if len(found) == 1 and not _words(found[0]):
            return found[0].strip()
    return None
