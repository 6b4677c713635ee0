"""docs/algorithms/compared_with_peers.md says what is tested, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from .released import VERSIONS
from .tables import difference_rows, functions, pair_rows

PAGE = Path(__file__).parents[2] / "docs/algorithms/compared_with_peers.md"
REQUIREMENTS = Path(__file__).parents[2] / "requirements-peers.txt"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def rows_below(page: str, heading: str) -> list[str]:
    """The rows of the table of a section, without its head."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_the_page_lists_each_pair(page: str) -> None:
    assert rows_below(page, "What is equal") == pair_rows(), (
        "python -m tests.peers.tables prints the tables"
    )


def test_the_page_lists_each_difference(page: str) -> None:
    assert rows_below(page, "What differs, on purpose") == difference_rows()


def test_the_page_counts_right(page: str) -> None:
    assert f"{len(functions())} pairs of functions" in page
    assert f"{len(difference_rows())} intended differences" in page


def test_the_versions_are_the_same_everywhere(page: str) -> None:
    installed = REQUIREMENTS.read_text(encoding="utf-8")

    for name, version in VERSIONS.items():
        assert f"{name}=={version}" in installed
        assert version in page
