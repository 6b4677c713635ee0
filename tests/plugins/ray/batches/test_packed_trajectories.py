"""Trajectories survive the trip as columns to the bit."""

import math

import numpy as np
import pytest

from rlhf_core.contracts import Stop, Trajectory, Turn, Uid
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_plugin_ray.batches.packed_trajectories import pack, unpack


def trajectory(uid, spans, length, **more):
    mask = np.zeros(length, dtype=bool)
    for start, end in spans:
        mask[start:end] = True
    count = int(mask.sum())
    rewards = [0.1 * (index + 1) for index in range(len(spans))]
    return Trajectory(
        uid=uid,
        token_ids=np.arange(length, dtype=np.int32) + uid.prompt,
        action_mask=mask,
        rollout_logprobs=np.linspace(-1, 0, count, dtype=np.float32),
        weight_version=np.full(count, uid.sample, dtype=np.int32),
        turns=tuple(
            Turn(start=start, end=end, reward=reward, stop=stop)
            for (start, end), reward, stop in zip(spans, rewards, Stop, strict=False)
        ),
        **more,
    )


def span(start, length, digits):
    image = MediaRef(sha256=32 * digits, num_bytes=999, format="webp", width=24, height=16)
    return MediaSpan(start=start, length=length, image=image)


ROWS = [
    trajectory(Uid(0, 7, 1), [(2, 5)], 5, metrics={"turns": 1.0, "odd": 1 / 3}),
    trajectory(Uid(0, 7, 0), [(1, 3), (5, 6), (6, 9)], 12, metrics={"turns": 3.0, "bad": math.nan}),
    trajectory(Uid(0, 3, 0, 2), [(4, 8)], 8, reward=0.0, rewards={"mine": 0.25}),
    trajectory(Uid(0, 3, 1), [(1, 3)], 4, reward=0.5, step_rewards=((0, 0.1), (1, 1 / 3))),
    trajectory(Uid(0, 3, 2), [(2, 3)], 4, reward=1.0, step_rewards=((0, 1.0),)),
    trajectory(Uid(0, 4, 0), [(4, 6)], 9, media=(span(1, 3, "ab"), span(6, 2, "cd"))),
    trajectory(Uid(0, 4, 1), [(4, 6)], 9, media=(span(1, 2, "ef"),)),
]


def assert_equal(actual, expected):
    for name in ("uid", "turns", "reward", "rewards", "step_rewards", "media"):
        assert getattr(actual, name) == getattr(expected, name), name
    for name in ("token_ids", "action_mask", "rollout_logprobs", "weight_version"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), name)
        assert getattr(actual, name).dtype == getattr(expected, name).dtype, name
    assert actual.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        np.testing.assert_equal(actual.metrics[name], value)


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[::-1], []], ids=len)
def test_rows_come_back_as_they_were_in_their_order(rows):
    actual = unpack(pack(rows))

    assert len(actual) == len(rows)
    for here, there in zip(actual, rows, strict=True):
        assert_equal(here, there)


def test_arrays_are_views_of_the_columns():
    packed = pack(ROWS)

    for row in unpack(packed):
        assert np.shares_memory(row.token_ids, packed.token_ids)
        assert np.shares_memory(row.rollout_logprobs, packed.rollout_logprobs)


def test_an_episode_reward_that_is_missing_is_not_zero():
    first, _, third, *_ = unpack(pack(ROWS))

    assert first.reward is None
    assert third.reward == 0.0
