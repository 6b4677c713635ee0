"""Losses that are not weighted with advantages: a run with one of them needs no reward."""

import pytest

from rlhf_cli.train import DEFAULTS
from rlhf_cli.training import Arguments, layers_of
from rlhf_config import resolve
from rlhf_core import ConfigError
from rlhf_core.plugins import load
from rlhf_testing.errors import has_code

PLUGINS = load()


def run_of(*words):
    words = ("--model", "some/model", "--data", "org/set", *words)
    return resolve(layers_of(Arguments(options=words), DEFAULTS, ()), PLUGINS, ())


def test_distillation_needs_no_reward():
    found = run_of("--loss", "distill", "--algo.teacher.path", "some/teacher")

    assert found.selections["reward.use"] == ()


def test_a_term_that_learns_from_rewards_needs_one():
    with pytest.raises(
        ConfigError, match="--reward: expected a reward", check=has_code("config/no-reward")
    ):
        run_of(
            "--loss", "distill", "--algo.teacher.path", "some/teacher", "--algo.terms.use", "ppo"
        )


def test_the_usual_losses_need_one():
    with pytest.raises(
        ConfigError, match="--reward: expected a reward", check=has_code("config/no-reward")
    ):
        run_of("--loss", "gspo")
