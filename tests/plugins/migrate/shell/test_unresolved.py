"""Expansions that a script's text does not decide, and what the report says of them."""

from pathlib import Path

import pytest

from rlhf_plugin_migrate.shell.launchers import launch_of
from rlhf_plugin_migrate.shell.script import commands
from rlhf_plugin_migrate.shell.unresolved import (
    advice_on,
    remark_on_exports,
    remarks_on_loops,
    remarks_on_values,
)
from rlhf_plugin_migrate.trl.launched import trl_launch_of


@pytest.mark.parametrize("part", ["$1", "${1:-out}", "${2}"])
def test_an_argument_of_the_script_is_written_in_its_place(part):
    assert advice_on(part) == (
        "an argument of the shell script, which is not known here: write the value in its place"
    )


@pytest.mark.parametrize("part", ["$@", "$*", "${@}", "${@:2}"])
def test_all_arguments_of_the_script_are_added_by_hand(part):
    assert advice_on(part) == (
        "all arguments of the shell script, which are not known here: add those that you start it with"
    )


@pytest.mark.parametrize("quoted", ['"$@"', "$@", '"${@:2}"', "$*"])
@pytest.mark.parametrize(
    ("start", "launch"),
    [("python -m openrlhf.cli.train_sft", launch_of), ("trl sft", trl_launch_of)],
)
def test_arguments_behind_a_flag_are_not_its_value(quoted, start, launch):
    (command,) = commands(f"{start} --ds.packing_samples {quoted}", {}, Path("/"))

    found = launch(command)

    assert found.words == ("--ds.packing_samples",)
    assert len(found.unresolved) == 1


@pytest.mark.parametrize("part", ["$HOME", "${A%b}"])
def test_a_variable_may_be_given(part):
    assert advice_on(part) == "only a shell could work it out: replace it, or give --set"


@pytest.mark.parametrize("part", ["$(date)", "`pwd`"])
def test_a_substitution_may_be_given_as_the_variable_that_it_is_in(part):
    assert advice_on(part).endswith("or give --set for the variable that it is in")


def _remarks(text: str, **variables: str) -> list[str]:
    return list(remarks_on_loops(commands(text, variables, Path("/"))))


LOOP = "for BETA in 0.1 0.2; do\n  trl dpo --beta %s\ndone"


@pytest.mark.parametrize("use", ["$BETA", "${BETA}", "'a'$BETA"])
def test_a_loop_whose_variable_a_command_uses_is_named_with_its_values(use):
    assert _remarks(LOOP % use) == [
        "warning: line 1: the loop runs its commands for BETA in 0.1 0.2; each is migrated once, without a value of "
        "BETA. Migrate again for each value, with --set BETA=VALUE"
    ]


def test_a_loop_is_not_named_where_its_variable_is_unused_or_given():
    assert _remarks(LOOP % "0.1") == []
    assert _remarks(LOOP % "$BETA", BETA="0.2") == []


def test_exported_variables_are_named_without_their_values():
    script = "export WANDB_MODE=offline KEY=secret\nexport -n OTHER\nLOCAL=1\ntrl sft --a b\n"

    (remark,) = remark_on_exports(commands(script, {}, Path("/")))

    assert "WANDB_MODE, KEY" in remark
    assert "secret" not in remark
    assert "LOCAL" not in remark


def test_a_value_for_a_variable_that_the_script_has_not_is_said_to_change_nothing():
    script = "python $HOME/train.py ${N:-1}"

    assert list(remarks_on_values(["HOME", "N"], script)) == []
    (remark,) = remarks_on_values(["HOM"], script)
    assert "--set HOM=... changes nothing" in remark
