"""The prompts that a run draws, one after the other, so that a resumed run draws the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.batch.task import Task
from rlhf_core.contracts.data.sampler import DrawRequest, PromptResult, PromptSampler

from .drawing.epoch_order import EpochOrder
from .drawing.prompt_set import PromptsOfTasks, Tasks


class Cursor:
    """A position in the endless sequence of draws.

    The epoch of a task, by which its samples are named and seeded, is the number of draws divided by the length of an
    epoch; a prompt that is drawn again in an epoch gets the next number that it has not had.

    Args:
        epochs: stop after the draws of this many epochs; None goes on for ever.
        taken: number of tasks taken before, from a checkpoint.
        sampler: chooses the prompts, and has begun; None: each prompt once an epoch.
        last_epochs: what ``last_epochs`` was at the checkpoint.
    """

    def __init__(
        self,
        tasks: Tasks,
        seed: int,
        *,
        epochs: int | None,
        taken: int = 0,
        sampler: PromptSampler | None = None,
        last_epochs: Mapping[int, int] | None = None,
    ) -> None:
        self._tasks = tasks
        self._epochs = epochs
        self._repeats = sampler is not None
        self._last_epochs = dict(last_epochs or {})
        self.taken = taken
        if sampler is None:
            sampler = EpochOrder()
            sampler.begin(PromptsOfTasks(tasks, seed))
        self._sampler = sampler

    def take(
        self, count: int, *, step: int = 1, in_flight: frozenset[int] = frozenset()
    ) -> list[Task]:
        """Return the next ``count`` tasks, or the rest of the last epoch.

        Args:
            step: the step that draws.
            in_flight: indices of the prompts whose results are not known yet.

        Raises:
            PluginError: the sampler made a mistake.
        """
        if self._epochs is not None:
            count = min(count, self._epochs * len(self._tasks) - self.taken)
        if count <= 0:
            return []
        request = DrawRequest(count=count, taken=self.taken, step=step, in_flight=in_flight)
        return [self._task(index) for index in self._sampler.draw(request)]

    def note(self, results: Sequence[PromptResult]) -> None:
        """Let the sampler know what became of prompts."""
        self._sampler.note(results)

    @property
    def sampler_state(self) -> dict[str, Any]:
        """State of the sampler, for checkpoints."""
        return self._sampler.state_dict()

    @property
    def last_epochs(self) -> dict[int, int]:
        """Index -> epoch of its last draw, of the prompts that were drawn in this epoch or got a later number; empty
        without a sampler, which draws none again."""
        now = self.taken // len(self._tasks)
        return {index: epoch for index, epoch in self._last_epochs.items() if epoch >= now}

    def _task(self, index: int) -> Task:
        epoch = self.taken // len(self._tasks)
        if self._repeats:
            epoch = max(epoch, self._last_epochs.get(index, -1) + 1)
            self._last_epochs[index] = epoch
        self.taken += 1
        return self._tasks.task(index, epoch)
