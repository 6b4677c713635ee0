"""Formulas of the site's pages: a fence ``math`` with LaTeX becomes MathML at build time, without scripts.

Code hosts set the same fences with MathJax. ``latex2mathml`` passes over what it does not know, so `math_of`
refuses what would be left as text. It knows no spaces around functions either, which `_spaced` adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from latex2mathml.converter import convert

BLOCK = re.compile(r"^```math\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
"""Fence with a formula, whose LaTeX is the group."""
NAME = re.compile(r"\\math(rm|tt)\{((?:[^{}\\]|\\_)+)\}")
"""Name of a quantity (``\\mathrm``) or an option (``\\mathtt``), which the converter would take apart into letters."""
MARKS = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
MARKED = re.compile(f"<mtext>{MARKS[0]}(rm|tt)(?: |&#x000A0;)(.*?){MARKS[1]}</mtext>")
"""Name on its way through the converter. It may not stay text: beside an operator, text counts as a space."""
OPTION = ' class="option"'
FUNCTION = re.compile(
    r"(</m(?:i|n|text|sub|frac|row)>|&#x00029;</mo>)?<m[io]>(log|exp|min|max)</m[io]>(?=(<mo [^>]*>(?:&#x00028;|\())?)"
)
"""Function after what it may multiply (group 1), and before the parenthesis of its argument (group 3)."""
SIGN = re.compile(r"(<mo[^>]*>(?:&#x0003D;|&#x00028;|&#x0002C;|\()</mo>)<mo>&#x02212;</mo>")
"""Minus after an equals sign, a parenthesis or a comma."""


def math_of(latex: str) -> str:
    """MathML of a formula, as a block.

    Raises:
        ValueError: a brace without its partner, or what the converter does not know.
    """
    braces = re.sub(r"\\[\\{}]", "", latex)
    if braces.count("{") != braces.count("}"):
        raise ValueError(f"{braces.count('{')} opening braces and {braces.count('}')} closing ones")
    # The converter's name for an environment that lines up at ampersands and counts no equations.
    named = NAME.sub(_marked, latex.strip().replace("{aligned}", "{align*}"))
    try:
        mathml = convert(named, display="block")
    except Exception as error:  # Its errors have no common class, nor a message.
        raise ValueError(f"latex2mathml: {type(error).__name__} {error}".strip()) from error
    if left := re.search(r">[^<]*?(\\\w*|&(?!#?\w+;))", mathml):
        raise ValueError(f"latex2mathml does not know {left[1]}")
    return _spaced(MARKED.sub(_identifier, mathml))


def problems(markdown: str) -> Iterator[tuple[int, str]]:
    """Lines of formulas that cannot be set, from 1, and why."""
    for found in BLOCK.finditer(markdown):
        try:
            math_of(found[1])
        except ValueError as error:
            yield markdown.count("\n", 0, found.start()) + 1, str(error)


def fence(source: str, *_: Any, **__: Any) -> str:
    """HTML of a fence ``math``, in the form that pymdownx.superfences calls."""
    return f'<div class="formula">{math_of(source)}</div>'


def _marked(found: re.Match[str]) -> str:
    name = found[2].replace(r"\_", "_")
    return rf"\text{{{MARKS[0]}{found[1]} {name}{MARKS[1]}}}"


def _identifier(found: re.Match[str]) -> str:
    return f'<mi mathvariant="normal"{OPTION if found[1] == "tt" else ""}>{found[2]}</mi>'


def _spaced(mathml: str) -> str:
    """The formula with TeX's spaces: around functions, and none after a sign."""

    def function(found: re.Match[str]) -> str:
        before, name, argument = found.groups()
        left, right = "0.17em" if before else "0", "0" if argument else "0.17em"
        return f'{before or ""}<mo lspace="{left}" rspace="{right}">{name}</mo>'

    return SIGN.sub(r'\1<mo form="prefix">&#x02212;</mo>', FUNCTION.sub(function, mathml))
