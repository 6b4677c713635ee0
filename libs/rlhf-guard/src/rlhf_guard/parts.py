"""Components that the loop calls itself: named where they raise, or return something else than their kind promises."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core import wrong_answer
from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.task import Task
from rlhf_core.batch.trajectory import Trajectory
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.called import asking
from rlhf_core.contracts.executor import RolloutContext, RolloutExecutor
from rlhf_core.contracts.reward import RewardShaper, RolloutInfo, SampleFilter


@dataclass(frozen=True, slots=True)
class NamedExecutor:
    """A rollout executor whose answers are checked. What its episodes raise keeps its type."""

    executor: RolloutExecutor
    label: str
    """Component and origin, for messages."""

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return the executor's trajectories.

        Raises:
            PluginError: ``run`` is no coroutine with these arguments, or returned something else than trajectories.
        """
        with asking(f"{self.label}: run()"):
            running: Any = self.executor.run(task, samples, context)
        if not isinstance(running, Awaitable):
            raise wrong_answer(
                f"{self.label}: run()",
                running,
                "a coroutine; write it as async def run(task, samples, context)",
            )
        rows: Any = await running
        if not isinstance(rows, list | tuple) or not all(
            isinstance(one, Trajectory) for one in rows
        ):
            raise wrong_answer(
                f"{self.label}: run()", rows, "a list of rlhf_core.contracts.Trajectory"
            )
        return list(rows)


@dataclass(frozen=True, slots=True, eq=False)
class NamedFilter:
    """A sample filter whose reasons are checked."""

    filter: SampleFilter
    label: str

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return the filter's reason to drop a group; None: it stays.

        Raises:
            PluginError: the filter raised, or gave no reason. A truth value is none: it would drop every group, as any
                answer but None does.
        """
        with asking(f"{self.label}: keep()"):
            why = self.filter.keep(group, info)
        if why is None or (isinstance(why, str) and why):
            return why
        wanted = "None, which keeps the group, or the reason to drop it, a short word"
        raise wrong_answer(f"{self.label}: keep()", why, wanted)


@dataclass(frozen=True, slots=True)
class NamedShaper:
    """A reward shaper whose answers are checked."""

    shaper: RewardShaper
    label: str

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        """Return the shaper's batch and metrics.

        Raises:
            PluginError: the shaper raised, or returned something else than a batch of as many rows and metrics.
        """
        with asking(f"{self.label}: shape()"):
            answer: Any = self.shaper.shape(batch, info)
        match answer:
            case (TrajectoryColumns() as shaped, dict() as metrics) if len(shaped) == len(batch):
                for name, metric in metrics.items():
                    if not isinstance(metric, Metric):
                        raise wrong_answer(
                            f"{self.label}: shape()", metric, f"a Metric as {name!r}"
                        )
                return shaped, metrics
        wanted = f"(batch, metrics), with the batch's {len(batch)} rows"
        raise wrong_answer(f"{self.label}: shape()", answer, wanted)

    def state_dict(self) -> dict[str, Any]:
        """Return the shaper's state, as ``plain_state``."""
        with asking(f"{self.label}: state_dict()"):
            state = self.shaper.state_dict()
        return plain_state(self.label, state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the shaper its state."""
        self.shaper.load_state_dict(state)


def plain_state(who: str, state: object) -> dict[str, Any]:
    """Return a component's state as a checkpoint gives it back: a copy, of JSON types.

    Raises:
        PluginError: JSON has no such value, or gives another one back, such as "3" for a key that is 3.
    """
    problem = "" if _has_text_keys(state) else "a dict with a key that is no text"
    try:
        plain: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        problem = " ".join(str(error).split())
    if problem:
        wanted = "JSON: dicts with texts as keys, lists, texts, finite numbers, truths, None"
        raise wrong_answer(f"{who}: state_dict()", state, wanted, shown=problem)
    return plain


def _has_text_keys(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _has_text_keys(one) for key, one in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_text_keys, value))
