"""Reward models: the rewards ``reward_model`` and ``process_reward_model``, and the command ``rlhf serve-rm``."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import RewardModelConfig, ServeConfig, StepRewardConfig


@hookimpl
def rlhf_rewards() -> list[Component[Any]]:
    return [
        Component(
            name="reward_model",
            config=RewardModelConfig,
            factory="rlhf_plugin_reward_model.reward:make_reward",
            summary="score of the whole sequence by a sequence-classification model",
            provides=frozenset({"one_process", "reads_text_alone"}),
        ),
        Component(
            name="process_reward_model",
            config=StepRewardConfig,
            factory="rlhf_plugin_reward_model.step_reward:StepReward",
            summary="probabilities that the steps are good, by a process reward model: one number or each",
            conflicts=frozenset({"images"}),
            provides=frozenset({"one_process"}),
        ),
    ]


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    return [
        Component(
            name="serve_rm",
            config=ServeConfig,
            factory="rlhf_plugin_reward_model.serving.command:serve_rm",
            summary="Score over HTTP with a reward model.",
            extra="serve",
        )
    ]
