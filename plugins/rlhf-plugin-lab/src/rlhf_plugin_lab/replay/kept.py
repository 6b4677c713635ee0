"""Rollouts of a span, kept as they were sampled and given again: executors around the run's own one.

Both live in the process that drives the run, and so does what they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rlhf_config import ResolvedOptions
from rlhf_core import RolloutError
from rlhf_core.contracts import RolloutContext, RolloutExecutor, Task, Trajectory, Uid
from rlhf_core.media import MediaRef, MediaStore

T = TypeVar("T")


@dataclass(slots=True)
class Kept:
    """Episodes by epoch, prompt and sample."""

    episodes: dict[tuple[int, int, int], list[Trajectory]] = field(default_factory=dict)
    """Segments of each episode, with the sampler's log-probs, before the rewards have scored them."""
    left_out: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """Episodes that the executor left out, with the reason."""
    ran_out: bool = False
    """An episode was asked for that is not here."""
    images: dict[MediaRef, bytes] = field(default_factory=dict)
    """Images of the episodes that are no files of the user's, which every run links to: what environments drew."""


class KeepingExecutor:
    """Plays with the run's own executor, and keeps what it gives. Evaluations are not kept.

    Args:
        store: the run's images.
        ask_all: ask the engine for the log-probs of every sample, also where the run does without, since changed
            options need them. What the run gets lacks them as before; an engine may compute those of a larger batch in
            another order, so that metrics of the difference to the learner's differ by rounding.
    """

    def __init__(
        self, inner: RolloutExecutor, kept: Kept, store: MediaStore, *, ask_all: bool = False
    ) -> None:
        self._inner = inner
        self._kept = kept
        self._store = store
        self._ask_all = ask_all

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
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
                self._keep_images(own)
        return rows

    def _keep_images(self, rows: Sequence[Trajectory]) -> None:
        for image in _images_of(rows):
            if image not in self._kept.images and not self._store.path(image).is_symlink():
                self._kept.images[image] = self._store.read(image)


class RecordedExecutor:
    """Gives episodes that were kept in place of playing them. Evaluations are played by the run's own executor.

    Args:
        store: the run's images, which gets those of the episodes.
    """

    def __init__(self, inner: RolloutExecutor, kept: Kept, store: MediaStore) -> None:
        self._inner = inner
        self._kept = kept
        self._store = store

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
                self._kept.ran_out = True
                raise RolloutError(
                    f"{task.uid._replace(sample=sample)}: expected an episode that the run sampled in this span; it "
                    "sampled none of that name, and a replay samples nothing. With the changed options more groups "
                    "are dropped, so that more are drawn: choose options that drop fewer, or a shorter span.",
                    code="lab/samples-differ",
                )
        for image in _images_of(rows):
            if image in self._kept.images:
                self._store.put(self._kept.images[image], image)
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


def _images_of(rows: Sequence[Trajectory]) -> Iterator[MediaRef]:
    return (span.image for row in rows for span in row.media)


def _is_evaluation(task: Task) -> bool:
    return task.uid.epoch < 0
