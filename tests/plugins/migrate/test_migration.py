"""Which settings are stated, and the check by the rules of ``rlhf train``."""

import pytest

from rlhf_core import UnknownComponent
from rlhf_core import plugins as plugin_loader
from rlhf_plugin_migrate.migration import worth_stating
from rlhf_plugin_migrate.openrlhf.reinforcement.train_ppo_ray import migrate
from rlhf_plugin_migrate.ours import OurDefaults
from rlhf_testing.errors import has_code


@pytest.fixture(scope="module")
def ours():
    return OurDefaults("train", plugin_loader.load())


@pytest.mark.parametrize(
    ("path", "value", "is_default"),
    [
        ("seed", 42, True),
        ("rollout.n_samples_per_prompt", 8, True),
        ("rollout.n_samples_per_prompt", 1, False),
        ("algo.loss.policy", "ppo", True),
        ("actor.adam.betas", [0.9, 0.95], True),
        ("algo.loss.gspo.clip_high", 0.2, False),
        ("algo.loss.ppo.dual_clip", "none", True),
        ("reward.use", ["a"], False),
        ("model.path", "m", False),
        ("runtime.ray.ranks.policy", 1, False),
    ],
)
def test_our_defaults_are_known(ours, path, value, is_default):
    assert ours.has(path, value) is is_default


def test_a_written_option_is_stated_even_if_it_is_our_default(ours):
    settings = worth_stating(
        migrate(["--actor.eps_clip", "0.2", "--seed", "42"], "r.py"), "OpenRLHF", ours
    )

    assert settings["algo.loss.ppo.clip_high"].value == 0.2
    assert settings["seed"].value == 42


def test_a_default_is_stated_only_where_ours_differs(ours):
    settings = worth_stating(migrate([], "r.py"), "OpenRLHF", ours)

    assert "algo.loss.ppo.clip_high" not in settings
    assert settings["critic.adam.lr"].comment == "OpenRLHF's default"
    assert settings["algo.advantage.gae.lambda_"].value == 1.0


@pytest.mark.parametrize(
    ("command", "path", "value", "is_default"),
    [
        ("sft", "train.aggregation", "token-mean", True),
        ("sft", "data.max_length", 2048, True),
        ("rm", "data.max_length", 512, False),
        ("dpo", "preference.dpo.beta", 0.1, True),
        ("dpo", "actor.lora.dropout", 0.0, True),
        ("sft", "preference.dpo.beta", 0.1, False),
    ],
)
def test_each_command_has_its_own_defaults(command, path, value, is_default):
    assert OurDefaults(command, plugin_loader.load()).has(path, value) is is_default


def test_a_command_that_is_not_there_is_named():
    with pytest.raises(
        UnknownComponent, match="nothing", check=has_code("usage/no-training-command")
    ):
        OurDefaults("nothing", plugin_loader.load())
