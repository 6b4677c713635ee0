"""Which files a run collects, and in which order."""

import re
from pathlib import Path

import pytest
from tests.cases import LONGEST, MARKERS, could_be_chosen

ROOT = Path(__file__).parent.parent
SLOW = "slow and not gpu and not scale and not learning and not matrix"


@pytest.mark.parametrize(
    ("text", "expression", "chosen"),
    [
        ("def test_a(): ...", "", True),
        ("def test_a(): ...", "not slow and not gpu and not scale", True),
        ("pytestmark = pytest.mark.slow", "not slow and not gpu", True),  # others may be quick
        ("def test_a(): ...", SLOW, False),
        ("@pytest.mark.slow", SLOW, True),
        ("@pytest.mark.slow", "slow and scale", False),
        ("CASES = one_in(3, MODES)", "matrix and not gpu", True),
        ("def test_a(): ...", "slow or gpu", True),
    ],
)
def test_a_file_is_collected_unless_it_lacks_a_marker_that_is_asked_for(text, expression, chosen):
    assert could_be_chosen(text, expression) is chosen


def test_all_markers_are_known(pytestconfig):
    declared = {line.partition(":")[0] for line in pytestconfig.getini("markers")}

    assert declared >= MARKERS
    own = (ROOT / "pyproject.toml").read_text().partition("markers = [")[2].partition("]")[0]
    assert {line.strip(' "').partition(":")[0] for line in own.strip().splitlines()} == MARKERS


def test_the_files_that_start_first_exist():
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("target", ["test", "test-other-processor"])
def test_quick_tests_are_none_with_a_marker(target):
    """Cases of the matrix are often quick one by one, and there are hundreds: they are those of ``make test-all``."""
    makefile = (ROOT / "Makefile").read_text()
    quick = re.search(r"^QUICK := (.*)$", makefile, re.MULTILINE)[1]
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]

    assert {part.removeprefix("not ") for part in quick.split(" and ")} == MARKERS
    assert '-m "$(QUICK)"' in recipe
