"""Cutting a step's batch over ranks, and joining what comes back."""

import numpy as np

from rlhf_core.contracts import TopTokens, TrainBatch, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_plugin_ray.batches.batch_parts import columns_of, joined, rows_of


def trajectories_of(num_actions):
    rows = [
        Trajectory(
            uid=Uid(0, 0, index),
            token_ids=np.arange(count + 2, dtype=np.int32) + 10 * index,
            action_mask=np.arange(count + 2) >= 2,
            rollout_logprobs=-np.arange(count, dtype=np.float32),
            weight_version=np.zeros(count, dtype=np.int32),
            turns=(Turn(start=2, end=count + 2),),
        )
        for index, count in enumerate(num_actions)
    ]
    return TrajectoryColumns.from_trajectories(rows)


def batch_of(trajectories, supervised=None):
    size = int(trajectories.num_actions.sum())
    return TrainBatch(
        trajectories=trajectories,
        columns={"advantages": np.arange(size, dtype=np.float32)},
        teacher_top=TopTokens(
            token_ids=np.arange(2 * size, dtype=np.int32).reshape(size, 2),
            logprobs=-np.arange(2 * size, dtype=np.float32).reshape(size, 2),
        ),
        supervised=supervised,
    )


def test_a_part_has_its_own_rows_columns_and_tokens():
    trajectories = trajectories_of([2, 3, 1])

    part = columns_of(batch_of(trajectories), np.array([0, 2]), None)

    # Actions 0, 1 are row 0's, 2 to 4 row 1's, 5 row 2's.
    assert part.columns["advantages"].tolist() == [0, 1, 5]
    assert part.teacher_top.token_ids.tolist() == [[0, 1], [2, 3], [10, 11]]
    assert len(part.trajectories) == 0


def test_a_ranks_rows_keep_their_order_and_tokens():
    rows = rows_of(trajectories_of([2, 3, 1]), np.array([0, 2]))

    assert rows.uid[:, 2].tolist() == [0, 2]
    assert rows.tokens_of(1).tolist() == [20, 21, 22]


def test_parts_joined_are_the_whole():
    trajectories = trajectories_of([2, 3, 1, 4])
    batch = batch_of(trajectories)
    rows = [np.array([1, 3]), np.array([0]), np.array([2])]
    parts = [columns_of(batch, part, None) for part in rows]

    advantages = joined(trajectories, rows, [part.columns["advantages"] for part in parts])
    tokens = joined(trajectories, rows, [part.teacher_top.token_ids for part in parts])

    np.testing.assert_array_equal(advantages, batch.columns["advantages"])
    np.testing.assert_array_equal(tokens, batch.teacher_top.token_ids)
    assert tokens.dtype == np.int32
    assert advantages.flags.writeable


def test_all_rows_are_passed_on_without_a_copy():
    trajectories = trajectories_of([2, 3])
    batch = batch_of(trajectories)

    part = columns_of(batch, np.arange(2), None)

    assert rows_of(trajectories, np.arange(2)) is trajectories
    assert part.columns["advantages"] is batch.columns["advantages"]


def test_a_rank_without_rows_gets_an_empty_part():
    trajectories = trajectories_of([2])
    none = np.array([], dtype=np.int64)

    part = columns_of(batch_of(trajectories, trajectories_of([1, 2])), none, np.array([1]))

    assert len(part.trajectories) == 0
    assert part.columns["advantages"].shape == (0,)
    assert part.supervised.uid[:, 2].tolist() == [1]
