"""The watch on a run's metrics for signs that it learns nothing: each is said once, in one line of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .symptoms import Symptoms, symptoms_of
from .zero_gradients import CAUSES, OF_EXAMPLES, ZeroGradients

if TYPE_CHECKING:
    from rlhf_core.contracts import RunInfo


class LearningWatch:
    """Hears each step of a run. Symptoms are those of rollouts; gradients of 0 are watched in every run."""

    def __init__(self, run: RunInfo) -> None:
        backend, rollout = run.config["backend"]["name"], run.config.get("rollout")
        self._symptoms: Symptoms | None = None
        if rollout is None:
            self._gradients = ZeroGradients({}, backend, others=OF_EXAMPLES)
            return
        folder = str(run.config["output"])
        self._gradients = ZeroGradients(CAUSES, backend, folder)
        self._symptoms = Symptoms(folder, symptoms_of(rollout["max_new_tokens"]))

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, and warn of the signs that have lasted long enough."""
        self._gradients.note(step, metrics)
        if self._symptoms is not None:
            self._symptoms.note(step, metrics)
