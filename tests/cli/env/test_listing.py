"""``rlhf env list``: every installed environment, with what its manifest states."""

import json

import pytest

from rlhf_cli.env.listing import row_of
from rlhf_core import Component
from rlhf_core.component import Registered
from rlhf_core.contracts import EnvironmentManifest


def test_an_installed_environment_is_listed_with_version_kind_and_range(env):
    code, out, _ = env("list")

    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("echo_after_hint"))
    assert line.startswith("echo_after_hint@1 ")
    assert "multi_turn" in line
    assert "0 to 1" in line


def test_the_list_is_json_for_programs(env):
    code, out, _ = env("list", "--json")

    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["echo_after_hint"]["reward_range"] == [0.0, 1.0]
    assert rows["echo_after_hint"]["problem"] is None


def test_a_kind_that_is_written_as_text_is_listed():
    class Calls:
        manifest = EnvironmentManifest(kind="tools")

    row = row_of(Registered(Component(name="calls", factory=Calls, summary="a game"), "games"))

    assert (row["kind"], row["problem"]) == ("tools", None)


@pytest.mark.parametrize("factory", ["no_such_module:Thing", "json:Thing"])
def test_an_environment_that_cannot_be_imported_is_listed_with_its_problem(factory):
    row = row_of(Registered(Component(name="broken", factory=factory, summary="a game"), "games"))

    assert row["name"] == "broken"
    assert row["version"] is None
    assert "no_such_module" in row["problem"] or "Thing" in row["problem"]
