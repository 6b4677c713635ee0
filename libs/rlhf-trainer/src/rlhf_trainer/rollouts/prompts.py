"""The prompts that a run draws, one after the other, so that a resumed run draws the rest; and their results, of which
samplers learn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Task
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.called import asking
from rlhf_core.contracts.data.sampler import DrawRequest, PromptResult, PromptSampler, PromptSet
from rlhf_core.errors import PluginError
from rlhf_core.rng import generator_of
from rlhf_guard.parts import plain_state


class Cursor:
    """A position in the endless sequence of draws.

    The epoch of a task, by which its samples are named and seeded, is the number of draws divided by the length of an
    epoch; a prompt that is drawn again in an epoch gets the next number that it has not had.

    Args:
        epochs: stop after the draws of this many epochs; None: never stop.
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
        self._last_epochs = dict(last_epochs or {})
        self.taken = taken
        self._sampler = sampler
        self._order = EpochOrder(PromptsOfTasks(tasks, seed))

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
        if self._sampler is None:
            drawn: Sequence[int] = [self._order.at(self.taken + number) for number in range(count)]
        else:
            drawn = self._sampler.draw(
                DrawRequest(count=count, taken=self.taken, step=step, in_flight=in_flight)
            )
        return [self._task(index) for index in drawn]

    def note(self, groups: Sequence[TrajectoryColumns], step: int) -> None:
        """Let a sampler know what became of prompts.

        Args:
            groups: episodes of one prompt each, with the rewards as they were given.
            step: the step that took them.
        """
        if self._sampler is not None:
            self._sampler.note(prompt_results(groups, step))

    @property
    def sampler_state(self) -> dict[str, Any]:
        """State of the sampler, for checkpoints; empty without one."""
        return {} if self._sampler is None else self._sampler.state_dict()

    @property
    def last_epochs(self) -> dict[int, int]:
        """Index -> epoch of its last draw, of the prompts that were drawn in this epoch or got a later number; empty
        without a sampler, which draws none again."""
        now = self.taken // len(self._tasks)
        return {index: epoch for index, epoch in self._last_epochs.items() if epoch >= now}

    def _task(self, index: int) -> Task:
        epoch = self.taken // len(self._tasks)
        if self._sampler is not None:
            epoch = max(epoch, self._last_epochs.get(index, -1) + 1)
            self._last_epochs[index] = epoch
        self.taken += 1
        return self._tasks.task(index, epoch)


class EpochOrder:
    """Order without a sampler: each prompt once an epoch. A draw is a function of its number, so there is no state."""

    def __init__(self, prompts: PromptSet) -> None:
        self._prompts = prompts
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def at(self, number: int) -> int:
        """Return the prompt of a draw, counted from 0."""
        epoch, position = divmod(number, len(self._prompts))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self._prompts.order(epoch)
        return int(self._order[1][position])


class Tasks(Protocol):
    """The training set as the loop sees it."""

    def __len__(self) -> int:
        """Return the number of tasks of an epoch."""

    @property
    def indices(self) -> NDArray[np.int64]:
        """Indices of all tasks, ascending."""

    @property
    def returning(self) -> bool:
        """Whether an index is the same prompt in every epoch."""

    def order(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """Return the indices of the tasks in the order of this epoch."""

    def task(self, index: int, epoch: int) -> Task:
        """Return the task of an index, with ``uid = (epoch, index, 0, 0)``."""


@dataclass(frozen=True, slots=True)
class PromptsOfTasks:
    """See ``contracts.PromptSet``: the prompts of a run's tasks."""

    tasks: Tasks
    seed: int

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def indices(self) -> NDArray[np.int64]:
        return self.tasks.indices

    @property
    def returning(self) -> bool:
        return self.tasks.returning

    def order(self, epoch: int) -> NDArray[np.int64]:
        return self.tasks.order(epoch, self.seed)

    def row(self, index: int) -> Mapping[str, Any]:
        return self.tasks.task(index, 0).row

    def generator(self, *counters: int) -> np.random.Generator:
        return generator_of(self.seed, "prompt sampler", *counters)


def prompt_results(groups: Sequence[TrajectoryColumns], step: int) -> list[PromptResult]:
    """Return the result of each group, in order of the prompts. An episode of several sequences counts once, with
    their mean.

    Args:
        groups: episodes of one prompt each, with the rewards as they were given.
    """
    results = []
    for group in groups:
        epoch, prompt, _, _ = group.uid[0].tolist()
        totals = np.bincount(group.episode, group.total_reward) / np.bincount(group.episode)
        rewards = tuple(totals.tolist())
        results.append(PromptResult(index=prompt, epoch=epoch, step=step, rewards=rewards))
    return sorted(results, key=lambda result: (result.epoch, result.index))


LONGEST_RUN = 32
"""Longest run of draws of one prompt, if there are others; a longer one is an error: the run would learn one prompt."""


class CheckedSampler:
    """Sampler of a plugin whose mistakes become errors that name it; see ``contracts.PromptSampler``.

    Args:
        sampler: the sampler as its plugin made it.
        who: words for messages: option, name, distribution and version.
    """

    def __init__(self, sampler: PromptSampler, who: str) -> None:
        self._sampler = sampler
        self._who = who
        self._last: int | None = None
        self._run = 0

    def begin(self, prompts: PromptSet) -> None:
        self._indices = prompts.indices
        with self._asking("begin"):
            self._sampler.begin(prompts)

    def draw(self, request: DrawRequest) -> list[int]:
        """Return exactly as many indices as were asked for.

        Raises:
            PluginError: the sampler returned something else, raised, or draws one prompt for ever.
        """
        with self._asking("draw"):
            given: Any = self._sampler.draw(request)
        if not isinstance(given, Iterable):
            raise PluginError(
                f"{self._who}: expected {request.count} prompts for step {request.step}, got {given!r:.60}. draw() has "
                "to return a list of indices of prompts.",
                code="plugin/no-list-of-prompts",
            )
        with self._asking("draw"):  # a generator runs only now
            drawn = list(given)
        if len(drawn) != request.count:
            raise PluginError(
                f"{self._who}: expected {request.count} prompts for step {request.step}, got "
                f"{len(drawn) or 'none'}. draw() has to return as many indices as it is asked for; the run has "
                f"{len(self._indices)} prompts, and each may be drawn again.",
                code="plugin/number-of-prompts",
            )
        return [self._checked(index, request.step) for index in drawn]

    def note(self, results: Sequence[PromptResult]) -> None:
        with self._asking("note"):
            self._sampler.note(results)

    def state_dict(self) -> dict[str, Any]:
        with self._asking("state_dict"):
            state = self._sampler.state_dict()
        return plain_state(self._who, state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # The caller names the checkpoint in what this raises.
        self._sampler.load_state_dict(state)

    def _asking(self, method: str) -> AbstractContextManager[None]:
        return asking(f"{self._who}: {method}()")

    def _checked(self, index: Any, step: int) -> int:
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise PluginError(
                f"{self._who}: expected indices of prompts for step {step}, whole numbers; got {index!r}",
                code="plugin/no-index",
            )
        position = int(np.searchsorted(self._indices, index))
        if position == len(self._indices) or self._indices[position] != index:
            raise PluginError(
                f"{self._who}: expected indices of prompts for step {step}, from PromptSet.indices; no prompt has the "
                f"index {index}. There are {len(self._indices)}, from {self._indices[0]} to {self._indices[-1]}; "
                "rows that were skipped or held out have none.",
                code="plugin/unknown-index",
            )
        self._run = self._run + 1 if index == self._last else 1
        self._last = int(index)
        if self._run > LONGEST_RUN and len(self._indices) > 1:
            raise PluginError(
                f"{self._who}: drew prompt {index} {self._run} times in a row, up to step {step}; the run has "
                f"{len(self._indices)} prompts. To train on one prompt, give a data set with one row.",
                code="plugin/repeated-prompt",
            )
        return self._last
