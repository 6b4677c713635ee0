"""Trajectories for the checks of shapers, filters and backends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Stop, Trajectory, Turn
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.reward import RolloutInfo

INFO = RolloutInfo(step=5, version=4, max_new_tokens=16, max_length=64)
EOS_ID = 2
PAD_ID = 0
FIRST_ID = 4
"""Lowest id of an ordinary token."""
VOCABULARY = 60
"""Number of ids; ordinary tokens are those from ``FIRST_ID`` on."""


def trajectory(
    uid: Uid,
    turns: Sequence[int] = (4,),
    *,
    prompt: int = 3,
    gap: int = 3,
    reward: float = 0.0,
    stop: Stop = Stop.EOS,
    version: int = 4,
    last_token: int = EOS_ID,
) -> Trajectory:
    """Return a scored sequence whose tokens are a function of its uid.

    Args:
        turns: number of action tokens of each turn.
        gap: number of tokens of environment text between turns.
        last_token: last token of each turn.
    """
    draw = np.random.default_rng([abs(number) for number in uid])
    mask, spans, ends = [False] * prompt, [], []
    for index, size in enumerate(turns):
        mask += [False] * gap if index else []
        spans.append((len(mask), len(mask) + size))
        mask += [True] * size
        ends.append(len(mask) - 1)
    tokens = draw.integers(FIRST_ID, VOCABULARY, size=len(mask)).astype(np.int32)
    tokens[ends] = last_token
    count = sum(turns)
    return Trajectory(
        uid=uid,
        token_ids=tokens,
        action_mask=np.array(mask),
        rollout_logprobs=draw.uniform(-3, -0.2, size=count).astype(np.float32),
        weight_version=np.full(count, version, dtype=np.int32),
        turns=tuple(
            Turn(start=start, end=end, reward=0.25 * index, stop=stop)
            for index, (start, end) in enumerate(spans)
        ),
        reward=reward,
        rewards={"right": reward},
        metrics={"error": 0.0},
    )


def group_of(
    rewards: Sequence[float], *, prompt: int = 0, gap: int = 3, turns: Sequence[int] = (3, 2)
) -> list[Trajectory]:
    """Return the samples of one prompt; every third is truncated, lengths differ."""
    return [
        trajectory(
            Uid(0, prompt, sample),
            (*turns[:-1], turns[-1] + sample),
            gap=gap,
            reward=reward,
            stop=Stop.LENGTH if sample % 3 == 2 else Stop.EOS,
        )
        for sample, reward in enumerate(rewards)
    ]


def batch_of(*groups: Sequence[Trajectory]) -> TrajectoryColumns:
    return TrajectoryColumns.from_trajectories([row for group in groups for row in group])


def assert_same_arrays(
    before: dict[str, NDArray[np.generic]], after: TrajectoryColumns, *, but: Sequence[str] = ()
) -> None:
    """Assert that a batch holds the arrays ``before``, those that start with one of ``but`` apart."""
    now = after.arrays()
    for name, array in before.items():
        if not name.startswith(tuple(but)):
            same = name in now and np.array_equal(
                now[name], array, equal_nan=array.dtype.kind == "f"
            )
            assert same, f"{name} was changed"
