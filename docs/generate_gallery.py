"""Writes docs/gallery.md: the measured curves that the documentation has, by kind of component.

Run with ``make generated`` after docs/algorithms has a new page or curve; a test compares the page with what this would
write. It shows the figures of other pages and has none of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs/gallery.md"
ALGORITHMS = ROOT / "docs/algorithms"

HEAD = """\
# Gallery

This page shows every learning curve that was measured, each with a link to the page that has its command. Look here
to see what a method can learn, and how fast. Recipes with tables in place of figures, and recipes that nobody has run
yet, are in [examples](../examples/README.md). `make generated` writes this page.

## A pretrained model

Grade-school math with 0.5 billion parameters on one H100 ([gsm_symbolic](../examples/gsm_symbolic/README.md)).

![share of held-out questions answered rightly, by step and by minutes](../examples/gsm_symbolic/curve.png)

Python functions that pass hidden unit tests, 0.5 billion parameters on one H200
([python_functions](../examples/python_functions/README.md)).

![share of held-out functions that pass, by step and by minutes](../examples/python_functions/curve.png)

## Credit for a turn

An environment of two turns: reward at the turn that earned it, and at the end ([episodes](episodes.md)).

![share of right digits by step](turn_credit.png)

## Sorting by turns

Digits to sort, a swap of neighbors in each turn, by three estimators
([rlhf-env-sorting](../examples/rlhf-env-sorting/README.md)).

![share of held-out rows that are sorted, by step, of three estimators](../examples/rlhf-env-sorting/curve.png)

## The quickstart, by every component

Held-out accuracy of [reverse_digits](../examples/reverse_digits/README.md), with one component in the place of the
default: [seeds and figures](algorithms/README.md#learning-the-quickstart).
"""
END = "\n## Methods of papers\n"
"""Heading behind the tables of components."""
SECTION = re.compile(r"^## (.*?)$(.*?)(?=^## |\Z)", flags=re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| \[\w+\]\((\w+)\.md\)[^|]* \| (.*?) \|", flags=re.MULTILINE)
FIGURE = re.compile(r"^!\[([^]]*)\]\((curves/\w+\.png)\)$", flags=re.MULTILINE)


def current() -> str:
    """The page as it should be."""
    parts = [HEAD]
    index = (ALGORITHMS / "README.md").read_text(encoding="utf-8").partition(END)[0]
    for title, text in SECTION.findall(index):
        entries = [entry for name, summary in ROW.findall(text) if (entry := shown(name, summary))]
        if entries:
            parts.append(f"### {title}\n\n" + "\n\n".join(entries) + "\n")
    return "\n".join(parts)


def shown(name: str, summary: str) -> str | None:
    """An algorithm's line and its figure; None if its page has no figure."""
    figure = FIGURE.search((ALGORITHMS / f"{name}.md").read_text(encoding="utf-8"))
    if figure is None:
        return None
    return f"**[{name}](algorithms/{name}.md)**: {summary}.\n\n![{name}: {figure[1]}](algorithms/{figure[2]})"


if __name__ == "__main__":
    TARGET.write_text(current(), encoding="utf-8")
