"""Packages of which the algorithms were parts: their modules, their components and their hooks, for one release."""

import importlib
import sys

import pytest

from rlhf_core import plugins
from rlhf_testing.checks import load_alone

MODULES = {
    "rlhf_plugin_grpo.gspo": "rlhf_plugin_algorithms.losses.gspo",
    "rlhf_plugin_grpo.group_norm": "rlhf_plugin_algorithms.advantages.group_norm",
    "rlhf_plugin_ppo.gae": "rlhf_plugin_algorithms.advantages.gae",
    "rlhf_plugin_ppo.ppo": "rlhf_plugin_algorithms.losses.ppo",
    "rlhf_plugin_reinforce.rloo": "rlhf_plugin_algorithms.advantages.rloo",
    "rlhf_plugin_offpolicy.tis": "rlhf_plugin_algorithms.corrections.tis",
    "rlhf_plugin_offpolicy.cispo": "rlhf_plugin_algorithms.losses.cispo",
    "rlhf_plugin_shaping.overlong": "rlhf_plugin_algorithms.shapers.overlong",
    "rlhf_plugin_shaping.drop_stale": "rlhf_plugin_algorithms.filters.drop_stale",
    "rlhf_plugin_shaping.curriculum": "rlhf_plugin_algorithms.samplers.curriculum",
    "rlhf_plugin_shaping.kl_estimators.k3": "rlhf_plugin_algorithms.kl.k3",
    "rlhf_plugin_shaping.sources.function": "rlhf_plugin_sources.function",
    "rlhf_plugin_optim.adam": "rlhf_plugin_algorithms.optimizers.adam",
    "rlhf_plugin_optim.config": "rlhf_plugin_algorithms.optimizers",
    "rlhf_plugin_optim.schedules.wsd": "rlhf_plugin_algorithms.schedules.wsd",
    "rlhf_plugin_preference.dpo": "rlhf_plugin_algorithms.preference.dpo",
}


@pytest.fixture
def _forgotten():
    """Old packages that this process has not imported yet."""
    tops = {name.partition(".")[0] for name in MODULES}
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]


@pytest.mark.parametrize("old", MODULES)
@pytest.mark.usefixtures("_forgotten")
def test_an_old_module_is_the_new_one_with_one_warning(old):
    with pytest.warns(DeprecationWarning, match=f"what {old.partition('.')[0]} had is in") as seen:
        found = importlib.import_module(old)

    assert found is importlib.import_module(MODULES[old])
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("hook", "old", "new"),
    [
        ("rlhf_policy_losses", "grpo:gspo", "algorithms:gspo"),
        ("rlhf_advantage_estimators", "grpo:grpo", "algorithms:group_norm"),
        ("rlhf_reward_shapers", "shaping:clip", "algorithms:clip"),
        ("rlhf_data_sources", "shaping:function", "sources:function"),
        ("rlhf_optimizers", "optim:adam", "algorithms:adam"),
    ],
)
def test_an_old_name_of_a_component_is_the_new_one_with_a_warning(hook, old, new):
    loaded = plugins.load(component=old)

    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        assert loaded.get(hook, old).qualified == new


@pytest.mark.usefixtures("_forgotten")
def test_a_test_of_an_old_package_alone_finds_its_components():
    with pytest.warns(DeprecationWarning, match="what rlhf_plugin_ppo had is in"):
        loaded = load_alone("rlhf_plugin_ppo")

    assert loaded.get("rlhf_policy_losses", "ppo").component.summary
