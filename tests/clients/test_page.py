"""docs/agents.md says which modes of which frameworks are tried, and no more."""

from .all_cases import CASES
from .installed import ROOT, required
from .tables import rows

PAGE = ROOT / "docs/agents.md"


def section():
    """The section about frameworks."""
    page = PAGE.read_text(encoding="utf-8")
    return page.partition("\n### Frameworks\n")[2].partition("\n## ")[0]


def test_the_table_has_each_mode_that_is_tried():
    shown = [line for line in section().splitlines() if line.startswith("| ")]

    assert shown[2:] == rows(), "python -m tests.clients.tables prints the table"


def test_the_page_names_the_versions():
    text = " ".join(section().split())

    for framework in {case.framework for case in CASES} & required().keys():
        assert f"{framework} {required()[framework]}" in text
