"""Checks of reward shapers (``contracts.RewardShaper``)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf_core.batch.metric import Metrics
from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory_columns import TrajectoryColumns

from ..columns import INFO, assert_same_arrays, batch_of, group_of, trajectory
from ..comparing import assert_metrics
from ..subject import Subject, as_saved, checks_in

MAY_CHANGE = ("reward", "turn_rewards", "step_rewards", "metrics")
"""Columns that a shaper may write."""


def _batch(*, gap: int = 3) -> TrajectoryColumns:
    return batch_of(
        group_of((1.0, 0.0, 0.5), gap=gap), group_of((-2.0, 3.0), prompt=1, gap=gap, turns=(12, 9))
    )


def _shape(
    subject: Subject, batch: TrajectoryColumns | None = None
) -> tuple[TrajectoryColumns, Metrics]:
    answer = subject.make().shape(_batch() if batch is None else batch, INFO)
    assert isinstance(answer, tuple), (
        f"shape returned a {type(answer).__name__}; expected a tuple of the batch and metrics"
    )
    shaped, metrics = answer
    return shaped, metrics


def check_only_rewards_change(subject: Subject) -> None:
    """The same rows in the same order, and nothing but rewards is changed in them."""
    batch = _batch()
    shaped, metrics = _shape(subject, batch)
    assert len(shaped) == len(batch), f"{len(shaped)} rows, expected {len(batch)}"
    assert_same_arrays(batch.arrays(), shaped, but=MAY_CHANGE)
    assert_metrics(metrics, "metrics")


def check_rewards_stay_finite(subject: Subject) -> None:
    """Rewards come back as finite float32, one per row; also for a single row, constant and huge rewards."""
    for rewards in ((1.0, 0.0, 0.5), (0.1,) * 4, (1e6, -1e6), (2.0,)):
        shaped, _ = _shape(subject, batch_of(group_of(rewards)))
        assert shaped.reward.dtype == np.float32, f"{shaped.reward.dtype}, expected float32"
        assert shaped.reward.shape == (len(rewards),), f"{shaped.reward.shape} rewards"
        assert np.isfinite(shaped.reward).all(), f"rewards {rewards} became {shaped.reward}"
        assert np.isfinite(shaped.turn_rewards).all(), f"turn rewards {shaped.turn_rewards}"


def check_parts_change_no_total(subject: Subject) -> None:
    """Parts of a reward at single tokens change no shaped reward, and change themselves by one factor for each row."""
    parts = ((0, 0.5), (2, 0.0), (3, -0.25))
    whole = [trajectory(Uid(0, 0, sample), (5,), reward=0.25 + sample) for sample in range(3)]
    divided = [replace(row, step_rewards=parts) for row in whole]
    expected, actual = (_shape(subject, batch_of(rows))[0] for rows in (whole, divided))
    assert np.array_equal(actual.reward, expected.reward), (
        f"{actual.reward} with parts, {expected.reward} without"
    )
    assert actual.step_rewards.dtype == np.float32, f"{actual.step_rewards.dtype}, expected float32"
    assert np.isfinite(actual.step_rewards).all(), f"step rewards {actual.step_rewards}"
    by_row = actual.step_rewards.reshape(-1, len(parts))
    scaled = by_row[:, :1] * np.array([1.0, 0.0, -0.5], dtype=np.float32)
    assert np.allclose(by_row, scaled, atol=1e-6), f"parts {parts} became {by_row}"


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """The batch is not changed in place: the loop keeps the rewards as they were given."""
    batch = _batch()
    before = {name: array.copy() for name, array in batch.arrays().items()}
    _shape(subject, batch)
    assert_same_arrays(before, batch)


def check_environment_text_does_not_count(subject: Subject) -> None:
    """The length of the environment's text changes no reward: lengths are counted in action tokens."""
    short, _ = _shape(subject, _batch(gap=1))
    long, _ = _shape(subject, _batch(gap=9))
    assert np.allclose(short.reward, long.reward), (
        f"{short.reward} with 1 token of environment text per turn, {long.reward} with 9"
    )


def check_state_continues(subject: Subject) -> None:
    """The state is JSON, and a fresh instance that loads it goes on exactly as the first, also with earlier prompts."""
    first = subject.make()
    first.shape(_batch(), INFO)
    state = as_saved(subject.label, first.state_dict())
    second = subject.make()
    second.load_state_dict(state)
    more = batch_of(group_of((5.0, -1.0, 0.25), prompt=1), group_of((2.0, 0.5), prompt=3))
    expected, actual = (shaper.shape(more, INFO)[0].reward for shaper in (first, second))
    assert np.array_equal(actual, expected), f"{actual} after loading, expected {expected}"


def check_same_input_same_output(subject: Subject) -> None:
    """Two fresh instances agree to the bit."""
    first, second = (_shape(subject)[0].reward for _ in range(2))
    assert np.array_equal(first, second), f"{first}, then {second}"


CHECKS = checks_in(__name__)
