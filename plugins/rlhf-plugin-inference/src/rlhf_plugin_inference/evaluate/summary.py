"""The numbers of an evaluation: of each set at each temperature, with confidence intervals over tasks.

An episode passes if its reward is at least the threshold, both in float32, as in an evaluation within ``rlhf train``.
Episodes without a reward count for nothing but their tokens and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlhf_trainer.inference import pass_at_k

from ..statistics.intervals import Estimate, mean_estimate, rate_estimate
from .records import EpisodeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTally:
    """Results of one task at one temperature."""

    set: str
    temperature: float
    task: str
    episodes: int
    """Number of episodes with a reward."""
    passed: int
    reward: float | None
    """Mean of the episodes; None where none has a reward."""
    tokens_out: float
    """Mean number of tokens that the model wrote in an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSummary:
    """Results of one set at one temperature."""

    set: str
    temperature: float
    tasks: int
    episodes: int
    unscored: int
    """Number of episodes without a reward."""
    reward: Estimate | None
    """Mean reward of an episode; None where none has one."""
    pass_at: Mapping[int, Estimate]
    """By k: the chance that one of k episodes of a task passes."""
    rewards: Mapping[str, Estimate]
    """Mean of each reward's own score, by name."""
    metrics: Mapping[str, float]
    """Mean of each metric over the episodes that have it."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the metrics that ``eval.metrics`` chose, by name."""
    ends: Mapping[str, int]
    """Number of episodes by the reason for their end."""
    turns: float
    """Mean number of answers of an episode."""
    tokens_in: int
    """Tokens that the model read, of all episodes."""
    tokens_out: int
    """Tokens that it wrote, of all episodes."""
    truncated: float
    """Share of the episodes whose last answer hit a token limit."""


@dataclass(slots=True)
class _Cell:
    """Episodes of one set at one temperature, as columns."""

    task: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    """NaN where there is none."""
    rewards: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    turns: list[int] = field(default_factory=list)
    tokens_in: list[int] = field(default_factory=list)
    tokens_out: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    """Index of each task by its place in the set."""
    keys: list[str] = field(default_factory=list)

    def add(self, episode: EpisodeRecord) -> None:
        place = episode.uid.split(".")[1]
        task = self.names.setdefault(place, len(self.names))
        if task == len(self.keys):
            self.keys.append(episode.task)
        self.task.append(task)
        self.reward.append(np.nan if episode.reward is None else episode.reward)
        for name, score in episode.rewards.items():
            self.rewards.setdefault(name, []).append((task, score))
        for name, value in episode.metrics.items():
            self.metrics.setdefault(name, []).append(value)
        self.ends[episode.end] += 1
        self.turns.append(episode.turns)
        self.tokens_in.append(episode.tokens_in)
        self.tokens_out.append(episode.tokens_out)
        self.truncated.append(episode.truncated)


class Evaluation:
    """All episodes of an evaluation, counted.

    Args:
        threshold: reward from which an episode passes.
    """

    def __init__(self, episodes: Iterable[EpisodeRecord], *, threshold: float) -> None:
        self._threshold = np.float32(threshold)
        self._cells: dict[tuple[str, float], _Cell] = {}
        for episode in episodes:
            self._cells.setdefault((episode.set, episode.temperature), _Cell()).add(episode)

    def summaries(self, level: float) -> list[SetSummary]:
        """Return the results of each set at each temperature, in the order of the work.

        Args:
            level: confidence of the intervals, such as 0.95.
        """
        return [
            self._summary(name, temperature, cell, level)
            for (name, temperature), cell in self._cells.items()
        ]

    def tasks(self) -> Iterator[TaskTally]:
        """Yield the results of each task, in the order of the work."""
        for (name, temperature), cell in self._cells.items():
            task, reward = np.array(cell.task), np.array(cell.reward)
            scored = ~np.isnan(reward)
            total, passed = self._counts(cell)
            sums = np.bincount(task[scored], reward[scored], minlength=len(cell.keys))
            written = np.bincount(task, cell.tokens_out) / np.bincount(task)
            for index, key in enumerate(cell.keys):
                count = int(total[index])
                yield TaskTally(
                    set=name,
                    temperature=temperature,
                    task=key,
                    episodes=count,
                    passed=int(passed[index]),
                    reward=float(sums[index]) / count if count else None,
                    tokens_out=float(written[index]),
                )

    def _counts(self, cell: _Cell) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of scored episodes of each task, and of those that passed."""
        task, reward = np.array(cell.task), np.array(cell.reward)
        total = np.bincount(task[~np.isnan(reward)], minlength=len(cell.keys))
        passed = np.bincount(task[reward >= self._threshold], minlength=len(cell.keys))
        return total, passed

    def _summary(self, name: str, temperature: float, cell: _Cell, level: float) -> SetSummary:
        task, reward = np.array(cell.task), np.array(cell.reward)
        scored = ~np.isnan(reward)
        return SetSummary(
            set=name,
            temperature=temperature,
            tasks=len(cell.keys),
            episodes=len(task),
            unscored=int((~scored).sum()),
            reward=mean_estimate(reward[scored], task[scored], level) if scored.any() else None,
            pass_at=self._pass_at(cell, level),
            rewards={
                reward_name: mean_estimate(
                    np.array([score for _, score in pairs]),
                    np.array([owner for owner, _ in pairs]),
                    level,
                )
                for reward_name, pairs in sorted(cell.rewards.items())
            },
            metrics={
                metric: float(np.mean(values)) for metric, values in sorted(cell.metrics.items())
            },
            ends=dict(sorted(cell.ends.items())),
            turns=float(np.mean(cell.turns)),
            tokens_in=sum(cell.tokens_in),
            tokens_out=sum(cell.tokens_out),
            truncated=float(np.mean(cell.truncated)),
        )

    def _pass_at(self, cell: _Cell, level: float) -> dict[int, Estimate]:
        total, passed = self._counts(cell)
        total, passed = total[total > 0], passed[total > 0]
        if not len(total):
            return {}
        found = {}
        for k in ks_up_to(int(total.max())):
            # A task that lost episodes says nothing about more than it has left; the others do.
            enough = total >= k
            # n episodes give n // k disjoint groups of k: the number of independent trials of pass@k.
            trials = int(total[enough].min()) // k
            chances = pass_at_k(passed[enough], total[enough], k)
            found[k] = rate_estimate(chances, trials, level)
        return found


def ks_up_to(count: int) -> list[int]:
    """Return 1, 2, 4, ... up to a number of episodes, and the number itself."""
    powers = [1 << exponent for exponent in range(count.bit_length())]
    return powers if powers[-1] == count else [*powers, count]
