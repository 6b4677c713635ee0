"""Plugins that require another version of the core are named with both versions."""

import pytest

from rlhf_cli.other_core import tell_of_another_core
from rlhf_core.plugins import load

METADATA = "Metadata-Version: 2.1\nName: rlhf-plugin-acme\nVersion: 1.2\nRequires-Dist: {}\n"
PLUGIN = """
from rlhf_core import Component, hookimpl

@hookimpl
def rlhf_policy_losses():
    return [Component(name="acme_loss", factory=dict)]
"""


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """What is printed when the plugin ``acme`` has a requirement."""

    def call(requirement, names=None):
        folder = tmp_path / "rlhf_plugin_acme-1.2.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(METADATA.format(requirement))
        (folder / "entry_points.txt").write_text("[rlhf.plugins.v1]\nacme = acme_of_this_test\n")
        (tmp_path / "acme_of_this_test.py").write_text(PLUGIN)
        monkeypatch.syspath_prepend(tmp_path)
        tell_of_another_core(load(), names)
        return capsys.readouterr().err

    return call


@pytest.mark.parametrize("requirement", ["rlhf-core>=9", "RLHF_Core<0.0.1"])
def test_a_plugin_that_requires_another_core_is_told_with_both_versions(told, requirement):
    said = told(requirement)

    assert "plugin 'acme' (rlhf-plugin-acme 1.2) requires rlhf-core" in said
    assert requirement[9:] in said
    assert "this is rlhf-core 0." in said


@pytest.mark.parametrize(
    "requirement", ["rlhf-core", "rlhf-core>=0.1", 'rlhf-core>=9; extra == "new"', "other>=9"]
)
def test_a_plugin_that_this_core_suits_is_not_told(told, requirement):
    assert told(requirement) == ""


def test_of_other_plugins_than_the_ones_asked_for_nothing_is_said(told):
    assert told("rlhf-core>=9", {"algorithms"}) == ""
    assert "acme" in told("rlhf-core>=9", {"acme"})
