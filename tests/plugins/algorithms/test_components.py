"""The plugins of algorithms as a run sees them: light to import, complete, with options in range."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from rlhf_core import plugins
from rlhf_core.errors import CapabilityError
from rlhf_plugin_algorithms.advantages.gae import GaeConfig
from rlhf_plugin_algorithms.advantages.gdpo import GdpoConfig
from rlhf_plugin_algorithms.advantages.gigpo import GigpoConfig
from rlhf_plugin_algorithms.advantages.group_norm import GroupNormConfig
from rlhf_plugin_algorithms.advantages.grpo_passk import GrpoPasskConfig
from rlhf_plugin_algorithms.advantages.optimal_token_baseline import OptimalTokenBaselineConfig
from rlhf_plugin_algorithms.advantages.raft import RaftConfig
from rlhf_plugin_algorithms.advantages.reinforce import ReinforceConfig
from rlhf_plugin_algorithms.advantages.reinforce_baseline import ReinforceBaselineConfig
from rlhf_plugin_algorithms.losses.ppo import PpoLossConfig
from rlhf_testing.errors import has_code

COMPONENTS = {
    ("rlhf_advantage_estimators", "algorithms:gae"): {"values"},
    ("rlhf_advantage_estimators", "algorithms:reinforce"): set(),
    ("rlhf_advantage_estimators", "algorithms:reinforce_baseline"): {"group>=2"},
    ("rlhf_advantage_estimators", "algorithms:rloo"): {"group>=2"},
    ("rlhf_advantage_estimators", "algorithms:flash_reinforce"): set(),
    ("rlhf_advantage_estimators", "algorithms:remax"): {"greedy_rewards"},
    ("rlhf_advantage_estimators", "algorithms:opo"): {"group>=2"},
    ("rlhf_advantage_estimators", "algorithms:optimal_token_baseline"): {
        "group>=2",
        "old_logprobs",
        "sum_pi_squared",
    },
    ("rlhf_advantage_estimators", "algorithms:raft"): set(),
    ("rlhf_advantage_estimators", "algorithms:group_norm"): {"group>=2"},
    ("rlhf_advantage_estimators", "algorithms:dr_grpo"): {"group>=2"},
    ("rlhf_advantage_estimators", "algorithms:grpo_passk"): {"group>=2"},
    ("rlhf_advantage_estimators", "algorithms:maxrl"): {"group>=2"},
    ("rlhf_advantage_estimators", "algorithms:gdpo"): {"group>=2", "reward"},
    ("rlhf_advantage_estimators", "algorithms:gigpo"): {"group>=2", "observations"},
    ("rlhf_advantage_estimators", "algorithms:hierarchical_grpo"): {"group>=2", "observations"},
    ("rlhf_policy_losses", "algorithms:ppo"): set(),
    ("rlhf_optimizers", "algorithms:adam"): set(),
}


@pytest.fixture(scope="module")
def installed():
    return plugins.load()


@pytest.mark.parametrize("module", ["rlhf_plugin_algorithms", "rlhf_plugin_sources"])
def test_importing_a_plugin_and_its_options_imports_nothing_heavy(module):
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'transformers', 'datasets', 'jaxtyping'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("hook", "name"), COMPONENTS)
def test_each_component_is_registered_with_its_needs_and_builds_with_defaults(
    installed, hook, name
):
    registered = installed.get(hook, name)

    assert registered.component.needs == COMPONENTS[hook, name]
    assert callable(registered.build()) or hasattr(registered.build(), "create")
    assert registered.component.summary
    for field in registered.component.config.model_fields.values():
        assert field.description


def test_grpo_is_another_name_of_group_norm(installed):
    registered = installed.get("rlhf_advantage_estimators", "grpo")

    assert registered.qualified == "algorithms:group_norm"


COMPARES_A_GROUP = [
    name.split(":")[1] for (_, name), needs in COMPONENTS.items() if "group>=2" in needs
]


@pytest.mark.parametrize("name", COMPARES_A_GROUP)
def test_one_sample_per_prompt_is_refused_before_a_model_loads(installed, name):
    from rlhf_core.capabilities import Chosen, check

    chosen = [Chosen("--estimator", installed.get("rlhf_advantage_estimators", name))]

    with pytest.raises(
        CapabilityError,
        match=f"{name} needs at least 2",
        check=has_code("config/too-few-samples-per-prompt"),
    ):
        check(chosen, frozenset({"reward"}), samples_per_prompt=1)
    check(chosen, frozenset({"reward"}), samples_per_prompt=2)


@pytest.mark.parametrize(
    ("name", "options", "enough"),
    [
        ("raft", {"keep": "best"}, 2),
        ("grpo_passk", {"advantage": "analytic", "k": 8}, 8),
    ],
)
def test_options_that_need_a_larger_group_say_so(installed, name, options, enough):
    from rlhf_core.capabilities import Chosen, check

    registered = installed.get("rlhf_advantage_estimators", name)
    chosen = [Chosen("--estimator", registered, registered.validate(options))]

    with pytest.raises(
        CapabilityError,
        match=f"{name} needs at least {enough}",
        check=has_code("config/too-few-samples-per-prompt"),
    ):
        check(chosen, frozenset(), samples_per_prompt=enough - 1)
    check(chosen, frozenset(), samples_per_prompt=enough)


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (GaeConfig, {"gamma": 1.01}),
        (GaeConfig, {"lambda_": -0.1}),
        (GaeConfig, {"whiten": "yes"}),
        (PpoLossConfig, {"clip_low": 0.0}),
        (PpoLossConfig, {"clip_low": 1.1}),
        (PpoLossConfig, {"clip_high": 20.0}),
        (PpoLossConfig, {"dual_clip": 1.0}),
        (ReinforceConfig, {"gamma": float("nan")}),
        (ReinforceBaselineConfig, {"gamma": 0.9}),
        (GroupNormConfig, {"eps": 1e-9}),
        (GroupNormConfig, {"std": "both"}),
        (GaeConfig, {"value_lambda_": 1.5}),
        (OptimalTokenBaselineConfig, {"tail": "mean"}),
        (RaftConfig, {"keep": "all"}),
        (RaftConfig, {"threshold": float("nan")}),
        (GrpoPasskConfig, {"k": 0}),
        (GrpoPasskConfig, {"eps": 0.0}),
        (GdpoConfig, {"whiten": "batch"}),
        (GigpoConfig, {"step_weight": -1.0}),
        (GigpoConfig, {"gamma": 1.01}),
    ],
)
def test_options_out_of_range_are_refused(config, wrong):
    with pytest.raises(ValidationError):
        config(**wrong)
