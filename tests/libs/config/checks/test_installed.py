"""Components that import what is not installed are named before anything of them is imported."""

import sys

import pytest

from rlhf_config.checks.installed import (
    check_factory,
    check_installed,
    missing_imports,
    missing_of,
)
from rlhf_config.resolved import EnvironmentOptions, ResolvedOptions, Selection
from rlhf_core import Component, Config, MissingDependency, PluginError
from rlhf_core.code_reference import parse
from rlhf_core.component import Registered
from rlhf_testing.errors import has_code

HEAVY = """
from __future__ import annotations

import json
import os.path
from typing import TYPE_CHECKING

from . import near
from .near import thing

if TYPE_CHECKING:
    import only_for_types
try:
    import faster_json
except ImportError:
    faster_json = json


def later():
    import needed_in_one_case


class Heavy:
    pass
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose factory's module imports what is not there by way of another module."""
    folder = tmp_path / "some_plugin_of_mine"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "heavy.py").write_text(HEAVY)
    (folder / "near.py").write_text(
        "import not_there_at_all.deep\nfrom .heavy import Heavy\nthing = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("some_plugin_of_mine")]:
        del sys.modules[name]


class Distribution:
    """What is read of a distribution's metadata."""

    def __init__(self, *requires):
        self.metadata = {"Name": "rlhf-plugin-mine", "Version": "3.1"}
        self.requires = requires


def registered(factory, found=None, **described):
    component = Component(name="mine", factory=factory, **described)
    return Registered(component, "mine", found)


def test_a_module_that_another_one_imports_is_found_without_importing_either(package):
    assert list(missing_imports("some_plugin_of_mine.heavy:Heavy")) == [
        ("not_there_at_all", f"{package / 'near.py'}:1")
    ]
    assert "some_plugin_of_mine.heavy" not in sys.modules


def test_a_module_whose_names_are_imported_is_read_and_not_imported(package):
    """Importing it costs what the component itself costs: seconds, for one that begins with torch."""
    (package / "near.py").write_text("import json\nthing = 1\n")

    assert list(missing_imports("some_plugin_of_mine.heavy:Heavy")) == []
    assert "some_plugin_of_mine.near" not in sys.modules


def test_a_package_below_a_package_is_read_and_not_imported(package):
    (package / "parts").mkdir()
    (package / "parts" / "__init__.py").write_text("import not_there_in_parts\n")
    (package / "parts" / "part.py").write_text("import not_there_in_part\n")
    (package / "heavy.py").write_text("from .parts.part import Part\nfrom .parts import part\n")

    found = dict(missing_imports("some_plugin_of_mine.heavy:Heavy"))

    assert set(found) == {"not_there_in_part", "not_there_in_parts"}
    assert "some_plugin_of_mine.parts" not in sys.modules


def test_what_is_there_lacks_nothing():
    assert list(missing_imports("rlhf_core.registry:Registry")) == []
    assert list(missing_imports(Config)) == []


def test_a_file_of_the_users_is_read_too(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import json\n\nimport not_there_at_all\n\n\ndef metric(episodes):\n    return {}\n"
    )

    found = list(missing_imports(parse(f"{file}:metric")))

    assert found == [("not_there_at_all", f"{file}:3")]


def test_the_message_has_the_option_the_plugin_and_the_line_for_pip(package):
    (said,) = missing_of(
        registered("some_plugin_of_mine.heavy:Heavy", Distribution("Not-There.At_all>=2")),
        "--loss mine",
    )

    assert said == (
        "--loss mine (rlhf-plugin-mine 3.1) imports not_there_at_all, not installed here "
        f"({package / 'near.py'}:1).\n  pip install 'Not-There.At_all>=2'"
    )


def test_an_extra_is_installed_as_an_extra():
    found = Distribution('not-there-at-all; extra == "fast"', "pydantic")

    (said,) = missing_of(registered("nowhere.at_all:Thing", found, extra="fast"), "--engine mine")

    assert said == (
        "--engine mine (rlhf-plugin-mine 3.1) needs not-there-at-all (not installed).\n"
        "  pip install 'rlhf-plugin-mine[fast]'"
    )


def resolved_with(**environment):
    selection = Selection(
        slot="env.use",
        section="env.mine",
        registered=registered("some_plugin_of_mine.heavy:Heavy"),
        options=Config(),
        environment=EnvironmentOptions(**environment),
    )
    return ResolvedOptions(run=None, selections={"env.use": (selection,)}, tree={})


def test_an_environment_that_runs_elsewhere_may_have_its_own_packages(package):
    with pytest.raises(
        MissingDependency,
        match=r"--env\.use.*not_there_at_all",
        check=has_code("plugin/missing-dependency"),
    ):
        check_installed(resolved_with())

    check_installed(resolved_with(isolation="venv", python="/elsewhere/bin/python"))


NAMES = """
from somewhere import Imported as Renamed


class Heavy:
    pass


if Renamed:
    Made = Heavy
"""


def test_a_misspelled_factory_is_found_without_importing_its_module(package):
    (package / "names.py").write_text(NAMES)

    for right in ("Heavy", "Renamed", "Made"):
        check_factory(registered(f"some_plugin_of_mine.names:{right}"))
    with pytest.raises(PluginError, check=has_code("plugin/no-factory")) as caught:
        check_factory(registered("some_plugin_of_mine.names:Hevy"))

    assert "Did you mean 'Heavy'?" in str(caught.value)
    assert "some_plugin_of_mine.names" not in sys.modules


@pytest.mark.parametrize(
    "source",
    [
        "from .heavy import *\n",
        "def __getattr__(name):\n    return int\n",
        "globals()['Hevy'] = int\n",
        "",
    ],
)
def test_a_module_that_may_make_names_is_believed(package, source):
    (package / "names.py").write_text(source)

    check_factory(registered("some_plugin_of_mine.names:Hevy"))


def test_a_factory_in_no_module_is_not_ready(package):
    (said,) = missing_of(registered("some_plugin_of_mine.hevy:Heavy"), "--loss mine")

    assert "the factory some_plugin_of_mine.hevy:Heavy, whose module is not there" in said


def test_a_configuration_with_a_misspelled_factory_is_not_valid(package):
    (package / "names.py").write_text(NAMES)
    selection = Selection(
        slot="reward.use",
        section="reward.mine",
        registered=registered("some_plugin_of_mine.names:Hevy"),
        options=Config(),
    )

    with pytest.raises(PluginError, check=has_code("plugin/no-factory")):
        check_installed(ResolvedOptions(run=None, selections={"reward.use": (selection,)}, tree={}))
