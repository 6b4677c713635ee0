"""The choice among components that say how they suit, and what it records."""

import sys
import types

import pytest
from tests.core import sample_plugin

from rlhf_config import Layer, parse_flags, render_help, resolve, write_toml
from rlhf_config.automatic.choosing import best, may_choose, model_config
from rlhf_core import ConfigError, PluginError
from rlhf_core.component import Component, Registered
from rlhf_core.contracts import Accelerator, ChoiceSetting, Suitability
from rlhf_core.registry import Registry
from rlhf_testing.errors import has_code

GPU = Accelerator(name="card", memory_gib=80.0)
NOWHERE = ChoiceSetting(accelerators=(), components={}, provides=frozenset(), options={}, model={})


@pytest.fixture
def rules(monkeypatch):
    """A module of rules: ``plain`` works anywhere, ``fast`` on GPUs only."""
    module = types.ModuleType("rules_of_choice")
    module.plain = lambda setting: Suitability(rank=0, reason="it works anywhere")
    module.fast = lambda setting: (
        Suitability(rank=1, reason="there is a GPU")
        if setting.accelerators
        else Suitability(rank=None, reason="there is no GPU")
    )
    module.wrong = lambda setting: 3
    monkeypatch.setitem(sys.modules, "rules_of_choice", module)


def registry(**rule_of):
    made = Registry("rlhf_engines", "engine")
    for name, (rule, provides) in rule_of.items():
        suits = f"rules_of_choice:{rule}" if rule else None
        component = Component(name=name, factory=dict, provides=provides, suits=suits)
        made.add(Registered(component, "some"))
    return made


def test_the_highest_rank_is_chosen_and_the_others_are_said(rules):
    engines = registry(slow=("plain", ()), quick=("fast", ()))
    on_gpu = ChoiceSetting(
        accelerators=(GPU,), components={}, provides=frozenset(), options={}, model={}
    )
    assert best(engines, on_gpu, ())[0].name == "quick"
    chosen, reason = best(engines, NOWHERE, ())
    assert chosen.name == "slow"
    assert reason == "it works anywhere; not quick: there is no GPU"


def test_what_other_components_need_is_asked_of_the_chosen_one(rules):
    engines = registry(first=("plain", ()), second=("plain", ("tricks",)))
    assert best(engines, NOWHERE, ())[0].name == "first"
    assert best(engines, NOWHERE, {"tricks", "what no engine has"})[0].name == "second"


def test_nothing_suits(rules):
    with pytest.raises(
        ConfigError,
        match=r"quick: there is no GPU\..*quick",
        check=has_code("config/nothing-suits"),
    ):
        best(registry(quick=("fast", ())), NOWHERE, ())


@pytest.mark.parametrize(
    ("rule", "code"), [("wrong", "plugin/wrong-suitability"), ("missing", "plugin/no-factory")]
)
def test_a_wrong_rule_names_its_plugin(rules, rule, code):
    with pytest.raises(PluginError, match="some:odd", check=has_code(code)):
        best(registry(odd=(rule, ())), NOWHERE, ())


def test_auto_is_a_name_where_no_component_says_how_it_suits(rules):
    assert not may_choose(registry(one=(None, ())))
    assert may_choose(registry(one=("plain", ())))
    assert not may_choose(registry(auto=("plain", ())))


def test_a_model_that_is_not_here_has_no_configuration(tmp_path):
    assert model_config("") == {} == model_config(str(tmp_path)) == model_config("no/such-model")
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert model_config(str(tmp_path)) == {"hidden_size": 8}
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="broken JSON", check=has_code("config/unreadable-file")):
        model_config(str(tmp_path))


@pytest.fixture
def layers(rules, plugins):
    """Layers of a complete run that leaves the choice to two engines."""
    for name, rule in (("slow", "plain"), ("quick", "fast")):
        component = Component(
            name=name,
            factory=dict,
            provides={"rollout_logprobs"},
            suits=f"rules_of_choice:{rule}",
        )
        plugins.registries["rlhf_engines"].add(Registered(component, "some"))

    def made(*words, engine="auto"):
        typed = [*sample_plugin.ENOUGH, "--engine", engine, *words]
        return [Layer.of(sample_plugin.DEFAULTS, "defaults"), parse_flags(typed)]

    return made


def test_a_run_records_what_was_chosen(layers, plugins):
    resolved = resolve(layers(), plugins, (GPU,))
    assert resolved.tree["engine"]["name"] == "some:quick"
    assert resolved.choices == ("engine quick: there is a GPU; not slow: it works anywhere",)
    assert resolve(layers(), plugins, ()).tree["engine"]["name"] == "some:slow"


def test_a_named_component_is_taken_as_it_is(layers, plugins):
    resolved = resolve(layers(engine="fake_engine"), plugins, (GPU,))
    assert resolved.one("engine.name").name == "fake_engine"
    assert resolved.choices == ()


def test_a_resumed_run_keeps_its_component_on_another_machine(layers, plugins, tmp_path):
    words = ["--output", str(tmp_path)]
    write_toml(resolve(layers(*words), plugins, (GPU,)), tmp_path / "config.toml")

    resolved = resolve(layers(*words, "--resume", "auto"), plugins, ())
    assert resolved.tree["engine"]["name"] == "some:quick"
    assert resolved.choices == ("engine quick: the run that is resumed had it",)
    assert resolve(layers(*words), plugins, ()).tree["engine"]["name"] == "some:slow"


def test_help_asks_for_no_gpu(layers, plugins, monkeypatch):
    monkeypatch.delattr("rlhf_config.selection.visible_accelerators")
    assert "(now auto, by" in render_help(layers(), plugins)
