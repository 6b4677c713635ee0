"""The table of families in docs/models.md says of each family what the tests run, as their parametrisation has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_plugin_vlm.families import FAMILIES as SEEING

from .plugins.lora import test_every_family as adapters
from .plugins.torch.models import test_architectures as text
from .plugins.vllm.families import NOT_TRIED, RUN
from .plugins.vlm import test_adapters as seeing_adapters
from .plugins.vlm import test_more_families as seeing
from .plugins.vlm.vlm_material import EVERY_FAMILY

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
README = ROOT / "README.md"
COLUMNS = ("reads", "packed rows", "`embedded`", "`vllm`", "`lora`")


def ran(*tests: Callable[..., object]) -> set[str]:
    """The families that tests are parametrised with."""
    named = ("model_type", "family")
    return {
        str(getattr(value, "values", value if isinstance(value, tuple) else (value,))[0])
        for test in tests
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "parametrize" and (mark.args[0] in named or mark.args[0][0] in named)
        for value in mark.args[1]
    }


SEEN = ran(seeing.test_what_is_sampled_has_the_numbers_of_transformers_and_sees) | {
    str(getattr(family, "values", [family])[0]) for family in EVERY_FAMILY
}
"""Families of tests/plugins/vlm: one quick test of some, and the fixture of all, which test_agreement.py has."""


def rows_below(page: Path, heading: str) -> list[dict[str, str]]:
    """The rows of the table below a heading, by column."""
    section = page.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def table() -> dict[str, dict[str, str]]:
    """The cells of each row by column, by family."""
    rows = rows_below(PAGE, "Families")
    found = {row["`model_type`"].strip("`"): row for row in rows}
    assert len(found) == len(rows), "each family has one row"
    return found


def packed(family: str) -> str:
    """How rows are computed: in images of some families tokens see what is behind them."""
    if family in ran(text.test_packed_logprobs_are_those_of_each_sequence_alone):
        return "yes"
    kind = SEEING[family]
    ahead = kind.looks_ahead or kind.looks_ahead_in_windows
    return "padded where images are" if ahead else "yes"


def expected(family: str) -> dict[str, str]:
    """The cells of a family, by what the tests run."""
    engine = ran(text.test_the_engine_gives_the_logprobs_of_the_trainers_head) | SEEN
    adapted = ran(
        adapters.test_update_export_and_merge_are_those_of_peft,
        seeing_adapters.test_an_update_is_that_of_pefts_model,
    )
    mixtures = {*adapters.MIXTURES, *seeing_adapters.MIXTURES}
    lora = "yes, experts by option" if family in mixtures else "yes"
    return {
        "reads": "text, images" if family in SEEN else "text",
        "packed rows": packed(family),
        "`embedded`": "yes" if family in engine else NOT_TRIED,
        "`vllm`": RUN.get(family, NOT_TRIED),
        "`lora`": lora if family in adapted else NOT_TRIED,
    }


def test_each_family_that_the_tests_run_has_a_row():
    families = ran(text.test_packed_logprobs_are_those_of_each_sequence_alone) | SEEN

    assert families == set(text.ACCEPTED) | set(SEEING)
    assert sorted(table()) == sorted(families)
    assert set(RUN) <= families


@pytest.mark.parametrize("family", sorted({*text.ACCEPTED, *SEEING}))
def test_a_familys_cells_are_what_the_tests_run(family):
    cells = table()[family]

    assert {column: cells[column] for column in COLUMNS} == expected(family)


def test_what_is_refused_is_named():
    _, refused = PAGE.read_text().split("Refused by name:", 1)
    named = set(re.findall(r"`(\w+)`", refused.split(". ")[0]))

    assert named == set(text.REFUSED)


def test_the_readme_says_of_models_what_the_table_of_families_says():
    families = table()
    named = []
    for row in rows_below(README, "Which models can I train?"):
        of_row = [families[name] for name in re.findall(r"`(\w+)`", row["`model_type`"])]
        names = row["models"].split(", ")
        published = [set(family["published as"].split(", ")) for family in of_row]
        named += names

        assert set(names) <= set.union(*published)
        assert all(known & set(names) for known in published), f"{names}: one of each family"
        for shown, column in {
            "input": "reads",
            "`--actor.adapter lora`": "`lora`",
            "`--engine vllm`": "`vllm`",
        }.items():
            assert {family[column] for family in of_row} == {row[shown]}, names

    assert len(named) == len(set(named)) >= 20
    assert all(family["`embedded`"] == "yes" for family in families.values())
    assert f"lists all {len(families)}," in README.read_text()
