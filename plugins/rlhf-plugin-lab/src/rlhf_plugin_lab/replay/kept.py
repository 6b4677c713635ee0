"""Rollouts of a span, kept as they were sampled and given again: executors around the run's own one.

Both live in the process that drives the run, and so does what they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rlhf_config import ResolvedOptions
from rlhf_core import RolloutError
from rlhf_core.contracts import RolloutContext, RolloutExecutor, Task, Trajectory, Uid

T = TypeVar("T")


@dataclass(slots=True)
class Kept:
    """Episodes by epoch, prompt and sample."""

    episodes: dict[tuple[int, int, int], list[Trajectory]] = field(default_factory=dict)
    """Segments of each episode, with the sampler's log-probs, before the rewards have scored them."""
    left_out: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """Episodes that the executor left out, with the reason."""


class KeepingExecutor:
    """Plays with the run's own executor, and keeps what it gives. Evaluations are not kept.

    Args:
        ask_all: ask the engine for the log-probs of every sample, also where the run does without, since changed
            options need them. What the run gets lacks them as before; an engine may compute those of a larger batch in
            another order, so that metrics of the difference to the learner's differ by rounding.
    """

    def __init__(self, inner: RolloutExecutor, kept: Kept, *, ask_all: bool = False) -> None:
        self._inner = inner
        self._kept = kept
        self._ask_all = ask_all

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return what the run's own executor gives."""
        if _is_evaluation(task):
            return await self._inner.run(task, samples, context)

        def drop(uid: Uid, reason: str) -> None:
            self._kept.left_out[uid[:3]] = reason
            context.drop(uid, reason)

        logprobs = context.sampling.logprobs or self._ask_all
        asking = replace(context, drop=drop, sampling=replace(context.sampling, logprobs=logprobs))
        rows = await self._inner.run(task, samples, asking)
        for sample in samples:
            own = [row for row in rows if row.uid.sample == sample]
            if own:
                self._kept.episodes[(task.uid.epoch, task.uid.prompt, sample)] = own
        return rows


class RecordedExecutor:
    """Gives episodes that were kept in place of playing them. Evaluations are played by the run's own executor."""

    def __init__(self, inner: RolloutExecutor, kept: Kept) -> None:
        self._inner = inner
        self._kept = kept

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return the kept episodes of a task.

        Raises:
            RolloutError: an episode was not kept.
        """
        if _is_evaluation(task):
            return await self._inner.run(task, samples, context)
        rows: list[Trajectory] = []
        for sample in samples:
            key = (task.uid.epoch, task.uid.prompt, sample)
            if key in self._kept.episodes:
                rows += self._kept.episodes[key]
            elif key in self._kept.left_out:
                context.drop(task.uid._replace(sample=sample), self._kept.left_out[key])
            else:
                raise RolloutError(
                    f"{task.uid._replace(sample=sample)}: expected an episode that the run sampled in this span; it "
                    "sampled none of that name, and a replay samples nothing. With the changed options more groups "
                    "are dropped, so that more are drawn: choose options that drop fewer, or a shorter span."
                )
        return rows


def with_component(
    resolved: ResolvedOptions[Any], slot: str, around: Callable[[T], T]
) -> ResolvedOptions[Any]:
    """Return the options of a run whose component of a slot is ``around`` the one it has; the same where it has none.

    Args:
        slot: path of the selector, such as ``rollout.executor``.
    """
    selection = resolved.optional(slot)
    if selection is None:
        return resolved
    own = selection.registered
    component = replace(own.component, factory=lambda config: around(own.build(config)))
    wrapped = replace(selection, registered=replace(own, component=component))
    return replace(resolved, selections={**resolved.selections, slot: (wrapped,)})


def _is_evaluation(task: Task) -> bool:
    return task.uid.epoch < 0
