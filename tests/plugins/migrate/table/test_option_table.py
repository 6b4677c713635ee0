"""A file of options as tables: lines, parts with values, fates that options share, and beginnings."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from rlhf_plugin_migrate.table.entries import Missing, Nothing, Rule, To
from rlhf_plugin_migrate.table.kinds import NUMBER, SWITCH, TEXT
from rlhf_plugin_migrate.table.option_table import tables_of

FILE = """
framework = "Other"

[programs]
one = [{ part = "optimizer", prefix = "actor", lr = 0.1 }, { part = "rest" }]
two = [{ part = "optimizer", prefix = "critic", lr = 0.2 }, { part = "rest" }, { part = "own" }]

[fates]
FAST.nothing = "a matter of speed"
CLIP.rule = "a.{b,c}.{d,e} f"
ARGUMENT.to = "engine.args."

[parts.optimizer]
"<prefix>.lr" = { kind = "number", default = "<lr>", to = "<prefix>.adam.lr", old = "<prefix>.rate" }
"<prefix>.seed" = { kind = "whole", default = "<seed>", rule = "" }

[parts.rest]
FAST = "workers buffers. kernel* kernels"
ARGUMENT = "engine."
CUSTOM = "engine.own."
clip = { default = false, fate = "CLIP" }
name = { kind = ["a", "b"], default = "a", missing = "there is none", off = ["a"] }

[parts.own]
clip = { default = "x", to = "clip" }
"""


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "options.toml").write_text(FILE)
    return tables_of(tmp_path / "options.toml", {"CUSTOM": lambda rest: Nothing(rest.upper())})


def test_a_part_has_the_values_of_its_program(tables):
    lr = tables["two"].find("critic.rate")

    assert (lr.name, lr.kind, lr.default, lr.old) == ("critic.lr", NUMBER, 0.2, ("critic.rate",))
    assert lr.fate.option == "critic.adam.lr"
    assert tables["one"].entries["actor.seed"].default is None


def test_an_option_without_a_kind_has_that_of_its_default_and_the_later_line_counts(tables):
    first, later = tables["one"].entries["clip"], tables["two"].entries["clip"]

    assert (first.kind, first.fate) == (SWITCH, Rule("a.b.d", "a.b.e", "a.c.d", "a.c.e", "f"))
    assert (later.kind, later.default) == (TEXT, "x")


def test_a_missing_option_is_off_where_it_is_unset_or_has_a_listed_value(tables):
    assert tables["one"].entries["name"].fate == Missing("there is none", (None, "a"))
    with pytest.raises(ValueError, match="c"):
        tables["one"].entries["name"].kind.read(["c"])


def test_the_longest_beginning_says_what_becomes_of_an_option_without_a_line(tables):
    table = tables["one"]

    assert (
        table.find("kernels").fate
        == table.find("kernel_size").fate
        == table.find("buffers.size").fate
        == Nothing("a matter of speed")
    )
    assert replace(table.find("engine.width").fate) == To(
        "engine.args.width", table.find("engine.").fate.convert
    )
    assert table.find("engine.own.width").fate == Nothing("WIDTH")
    assert table.find("unknown") is None


def test_a_line_with_a_misspelled_key_is_refused(tmp_path):
    (tmp_path / "options.toml").write_text(
        FILE.replace("missing =", "mising =").replace("CUSTOM = ", "CLIP = ")
    )

    with pytest.raises(ValidationError, match="mising"):
        tables_of(tmp_path / "options.toml")


def test_a_file_may_use_a_fate_that_frameworks_share_or_have_its_own_of_that_name(tmp_path):
    file = tmp_path / "options.toml"
    file.write_text(FILE.replace("[parts.own]", '[parts.own]\nPACKED = "padding"\nFAST = "pages"'))

    table = tables_of(file, {"CUSTOM": Nothing})["two"]

    assert table.framework == "Other"
    assert table.find("padding").fate == Nothing("sequences are always packed")
    assert table.find("pages").fate == Nothing("a matter of speed")
