"""Selectors, the options that pick components, and short names of the options that are typed most.

This is the one place where a path of the configuration meets a hook. No component is named here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selector:
    """An option whose value is the name of a component, or a list of names."""

    path: str
    hook: str
    many: bool = False

    @property
    def section(self) -> str:
        """Path of the section in which it stands; its component's options are in ``<section>.<component>``."""
        return self.path.rpartition(".")[0]


SLOTS = (
    Selector("runtime.name", "rlhf_runtimes"),
    Selector("engine.name", "rlhf_engines"),
    Selector("backend.name", "rlhf_train_backends"),
    Selector("rollout.executor", "rlhf_rollout_executors"),
    Selector("rollout.environment", "rlhf_environments"),
    Selector("rollout.filters", "rlhf_sample_filters", many=True),
    Selector("reward.use", "rlhf_rewards", many=True),
    Selector("reward.shapers", "rlhf_reward_shapers", many=True),
    Selector("algo.advantage.estimator", "rlhf_advantage_estimators"),
    Selector("algo.loss.policy", "rlhf_policy_losses"),
    Selector("algo.terms.use", "rlhf_policy_losses", many=True),
    Selector("algo.correction.kind", "rlhf_is_corrections"),
    Selector("actor.optim", "rlhf_optimizers"),
    Selector("actor.adapter", "rlhf_model_adapters"),
    Selector("critic.optim", "rlhf_optimizers"),
)

SHORT_NAMES = {
    "estimator": "algo.advantage.estimator",
    "loss": "algo.loss.policy",
    "model": "model.path",
    "data": "data.train",
    "reward": "reward.use",
    "env": "rollout.environment",
    "executor": "rollout.executor",
    "engine": "engine.name",
    "backend": "backend.name",
    "runtime": "runtime.name",
    "optim": "actor.optim",
    "steps": "train.steps",
    "resume": "resume.checkpoint",
}
"""``--estimator x`` is ``--algo.advantage.estimator x``. ``seed`` and ``output`` are top-level keys."""
