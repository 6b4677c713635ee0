"""Environments of verifiers 0.4: a taskset, a harness that asks a model, and rewards by name.

Everything is the library's own, from the task's setup to its scores; the policy stands where the library has a model.
A rollout is turned around: each request becomes an observation, and each action its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_core import RolloutError
from rlhf_core.contracts import Action, Observation, StepResult, Task

from .asking import Asking
from .config import VerifiersConfig
from .handover import Ask, Handover
from .setting import Row, TasksetSetting, setting_of
from .stage import stage_of
from .titled import titled


class VerifiersBridge:
    """One episode.

    Raises:
        ConfigError: the taskset cannot be made.
    """

    def __init__(self, config: VerifiersConfig) -> None:
        self._setting: TasksetSetting = setting_of(config.model_dump_json())
        self._handover: Handover[Mapping[str, Any]] | None = None
        self._asking: Asking | None = None
        self._turns = 0

    def tasks(self, split: str) -> Iterable[Row]:
        """Return the taskset's tasks: ``train``, or ``eval`` with ``eval_tasks``.

        Raises:
            KeyError: there is no such split.
        """
        return self._setting.rows(split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin the episode of the row's task, or of one by the seed."""
        given = self._setting.task(task.row["task"] if "task" in task.row else self._any(seed))
        self._handover = Handover(lambda ask: self._play(given, ask))
        messages = await self._handover.question()
        if messages is None:
            raise RolloutError(
                f"{self._setting.title} ended before it asked the policy",
                code="environment/ended-early",
            )
        assert self._asking is not None
        return Observation(messages=tuple(messages), tools=self._asking.tools or ())

    async def step(self, action: Action) -> StepResult:
        """Give the harness the policy's answer, and return what it asks next, or the rewards."""
        assert self._handover is not None
        self._turns += 1
        turns = {"turns": float(self._turns)}
        self._handover.answer(action)
        messages = await self._handover.question()
        if messages is not None:
            return StepResult(observation=Observation(messages=tuple(messages)), metrics=turns)
        return StepResult(done=True, metrics=self._metrics() | turns)

    async def episode_rewards(self) -> Mapping[str, float]:
        """Return the taskset's rewards; those for what was played, if a limit of the run ended the episode."""
        assert self._handover is not None
        assert self._asking is not None
        if self._handover.outcome is None:
            self._asking.stop()
            self._handover.stop()
            await self._handover.question()
        rollout: Any = self._handover.outcome
        return {name: reward.value for name, reward in rollout.rewards.items()}

    async def close(self) -> None:
        """Cancel the episode where it has not ended."""
        if self._handover is not None:
            await self._handover.close()

    def _metrics(self) -> dict[str, float]:
        assert self._handover is not None
        rollout: Any = self._handover.outcome
        return {name: float(value) for name, value in rollout.metrics.items() if value is not None}

    def _any(self, seed: int) -> Any:
        rows = self._setting.rows("train")
        if not isinstance(rows, list) or not rows:
            raise RolloutError(
                f"{self._setting.title} has no end, and a task came from elsewhere; expected one of its own tasks",
                code="environment/unsuitable",
            )
        return rows[seed % len(rows)]["task"]

    async def _play(self, task: Any, ask: Ask) -> Any:
        """Return the rollout in which the policy was asked, with its rewards."""
        asking = self._asking = Asking(ask)
        stage = stage_of(self._setting)
        with titled(self._setting.title):
            async with stage.entered():
                episode = await stage.play(task, asking)
        return played(episode, asking.asked, self._setting.title)


def played(episode: Any, asked: set[str], title: str) -> Any:
    """Return the one rollout of an episode that asked the policy.

    Raises:
        RolloutError: the episode failed, or a reward was not given.
    """
    found = [trace for trace in episode.traces if trace.id in asked]
    errors = [trace.last_error for trace in episode.traces if trace.last_error] + episode.errors
    if not episode.ok:
        why = f"{errors[-1].type}: {errors[-1].message}" if errors else "it says no reason"
        raise RolloutError(f"{title} failed: {why}", code="environment/failed")
    if len(found) != 1:
        raise RolloutError(
            f"{title} let the policy play {len(found)} rollouts in an episode; expected one, and models of their own "
            "for other roles",
            code="environment/unsuitable",
        )
    open_rewards = [name for name, reward in found[0].rewards.items() if reward is None]
    if open_rewards:
        raise RolloutError(
            f"{title}: {', '.join(open_rewards)} gave no reward, because scoring ran out of time",
            code="environment/no-reward",
        )
    return found[0]
