"""Every formula of the pages is set as MathML, and one that cannot be set is found with its line.

`make site` builds the site and runs these with REQUIRE_SITE set; without that they are skipped.
"""

import os
import re
import sys
from pathlib import Path

import pytest

if "REQUIRE_SITE" not in os.environ:
    pytest.skip("needs what builds the site; make site runs it", allow_module_level=True)

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import formulas  # noqa: E402
from site_pages import PAGES  # noqa: E402

FORMULAS = {
    f"{path.relative_to(ROOT)}:{number}": latex
    for pattern in PAGES
    for path in sorted(ROOT.glob(pattern))
    for number, latex in enumerate(formulas.BLOCK.findall(path.read_text()), start=1)
}
TAG = re.compile(r"<[^>]*>")


@pytest.mark.parametrize("place", FORMULAS)
def test_a_formula_of_the_pages_becomes_mathml(place):
    mathml = formulas.math_of(FORMULAS[place])

    assert mathml.startswith("<math ")
    assert 'display="block"' in mathml
    assert "\\" not in TAG.sub("", mathml)


def test_most_algorithms_have_a_formula():
    assert len({place.partition(":")[0] for place in FORMULAS}) > 60


def test_the_built_pages_have_every_formula():
    shown = {
        path.parent.name: path.read_text().count('<math xmlns="http://www.w3.org/1998/Math/MathML"')
        for path in (ROOT / "site/docs/algorithms").glob("*/index.html")
    }
    written = {
        path.stem: len(formulas.BLOCK.findall(path.read_text()))
        for path in (ROOT / "docs/algorithms").glob("*.md")
        if path.stem != "README"
    }

    assert shown == written
    ppo = (ROOT / "site/docs/algorithms/ppo/index.html").read_text()
    assert re.search(r'<div class="formula"><math [^>]*display="block"', ppo)


def test_names_stay_whole_and_lines_stand_in_columns():
    mathml = formulas.math_of(
        "\\begin{aligned}\nx &= \\mathrm{ratio} \\\\\ny &= \\mathtt{clip\\_low}\n\\end{aligned}"
    )

    assert '<mi mathvariant="normal">ratio</mi>' in mathml
    assert '<mi mathvariant="normal" class="option">clip_low</mi>' in mathml
    assert mathml.count("<mtr>") == 2
    assert mathml.count("<mtd ") == 4


def test_a_minus_sign_stands_at_its_number_and_a_minus_between_two_does_not():
    assert formulas.math_of("x = -a").count('form="prefix"') == 1
    assert formulas.math_of("x = b - a").count('form="prefix"') == 0


@pytest.mark.parametrize(
    ("latex", "problem"),
    [
        (r"x = \unheard y", r"does not know \\unheard"),
        (r"\frac{a", "1 opening braces and 0 closing ones"),
        (r"\left( a", "ExtraLeftOrMissingRightError"),
        ("a & b", "does not know &"),
        (r"\begin{aligned} a", "MissingEndError"),
    ],
)
def test_a_formula_that_cannot_be_set_is_found_with_its_line(latex, problem):
    page = f"# Title\n\n```math\nx\n```\n\n```math\n{latex}\n```\n"

    ((line, message),) = formulas.problems(page)

    assert line == 7
    assert re.search(problem, message)
