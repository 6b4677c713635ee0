"""Trajectories for shapers and filters, from short descriptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from rlhf_core.contracts import RolloutInfo, Stop, Trajectory, TrajectoryColumns, Turn, Uid


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training sequence."""

    reward: float = 0.0
    turns: Sequence[int] = (3,)
    """Action tokens of each turn."""
    turn_rewards: Sequence[float] | None = None
    step_rewards: Sequence[tuple[int, float]] = ()
    truncated: bool = False
    prompt: int = 0
    sample: int | None = None
    """The next one of the prompt when None."""
    segment: int = 0
    versions: Sequence[int] | None = None
    """Of each action token; 5 when None."""
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def _trajectory(row: Row, sample: int, gap: int) -> Trajectory:
    mask: list[bool] = [False] * 2
    turns = []
    for index, size in enumerate(row.turns):
        mask += [False] * gap if index else []
        start, end = len(mask), len(mask) + size
        mask += [True] * size
        last = index == len(row.turns) - 1
        turns.append(
            Turn(
                start=start,
                end=end,
                reward=row.turn_rewards[index] if row.turn_rewards else 0.0,
                stop=Stop.LENGTH if last and row.truncated else Stop.EOS,
            )
        )
    count = sum(row.turns)
    return Trajectory(
        uid=Uid(0, row.prompt, sample, row.segment),
        token_ids=np.arange(len(mask), dtype=np.int32),
        action_mask=np.array(mask),
        rollout_logprobs=np.full(count, -1.0, dtype=np.float32),
        weight_version=np.array(row.versions or [5] * count, dtype=np.int32),
        turns=tuple(turns),
        reward=row.reward,
        rewards=row.rewards,
        step_rewards=tuple(row.step_rewards),
        metrics=row.metrics,
    )


def _columns(*rows: Row, gap: int = 4) -> TrajectoryColumns:
    """Pack rows; ``gap`` tokens of environment text stand between turns."""
    counts: dict[int, int] = {}
    trajectories = []
    for row in rows:
        number = counts.get(row.prompt, 0)
        counts[row.prompt] = number + 1
        trajectories.append(_trajectory(row, number if row.sample is None else row.sample, gap))
    return TrajectoryColumns.from_trajectories(trajectories)


@pytest.fixture(name="Row", scope="session")
def _row() -> type[Row]:
    return Row


@pytest.fixture(scope="session")
def columns() -> Callable[..., TrajectoryColumns]:
    return _columns


@pytest.fixture(scope="session")
def info() -> RolloutInfo:
    return RolloutInfo(step=7, version=5, max_new_tokens=10, max_length=64)
