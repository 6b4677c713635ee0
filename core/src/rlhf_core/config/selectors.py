"""Selectors, the options that pick components, and short names of the options that are typed most."""

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
