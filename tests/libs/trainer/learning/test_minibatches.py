"""Cutting a rollout batch into updates: each sequence once per epoch, the order from the seed alone."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_core.contracts import ROW_WEIGHTS, TopTokens, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_trainer.learning.minibatches import minibatches, of_rows, step_data, totals_of


def batch_of(num_rows: int, uids: Sequence[Uid] | None = None) -> TrajectoryColumns:
    """Row n has n + 1 actions, all with the token n."""
    rows = []
    for n in range(num_rows):
        length = n + 1
        rows.append(
            Trajectory(
                uid=uids[n] if uids else Uid(0, n),
                token_ids=np.full(1 + length, n, np.int32),
                action_mask=np.array([False] + [True] * length),
                rollout_logprobs=np.zeros(length, np.float32),
                weight_version=np.zeros(length, np.int32),
                turns=(Turn(start=1, end=1 + length),),
            )
        )
    return TrajectoryColumns.from_trajectories(rows)


def cut(num_rows, per_epoch, epochs, seed=0, step=1):
    batch = batch_of(num_rows)
    columns = {
        "advantages": batch.action_turn * 0 + np.repeat(np.arange(num_rows), batch.num_actions)
    }
    return parts_of(batch, columns, per_epoch=per_epoch, epochs=epochs, seed=seed, step=step)


def parts_of(batch, columns, teacher_top=None, **cut):
    """What each update of a step gets."""
    whole = step_data(batch, columns, teacher_top)
    return [
        SimpleNamespace(batch=of_rows(whole, rows), normalizers=totals_of(batch, rows, 9))
        for rows in minibatches(batch, **cut)
    ]


def prompts(part):
    return part.batch.trajectories.uid[:, 1].tolist()


@pytest.mark.parametrize(("num_rows", "per_epoch"), [(8, 2), (7, 3), (5, 5)])
def test_every_sequence_is_in_one_minibatch_of_each_epoch(num_rows, per_epoch):
    parts = cut(num_rows, per_epoch, epochs=2)

    for epoch in (parts[:per_epoch], parts[per_epoch:]):
        assert sorted(prompt for part in epoch for prompt in prompts(part)) == list(range(num_rows))


def test_columns_follow_their_rows():
    for part in cut(7, 3, epochs=1):
        rows, lengths = prompts(part), part.batch.trajectories.num_actions
        np.testing.assert_array_equal(part.batch.columns["advantages"], np.repeat(rows, lengths))


def test_normalizers_are_those_of_the_minibatch():
    for part in cut(7, 3, epochs=1):
        assert part.normalizers.num_sequences == len(part.batch.trajectories)
        assert part.normalizers.num_actions == sum(prompt + 1 for prompt in prompts(part))
        assert part.normalizers.max_actions == 9


def test_the_order_depends_on_seed_step_and_epoch():
    orders = [
        [prompts(part) for part in cut(8, 2, 2, seed, step)]
        for seed, step in [(0, 1), (0, 2), (1, 1)]
    ]

    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0][:2] != orders[0][2:]
    assert orders[0] == [prompts(part) for part in cut(8, 2, 2, 0, 1)]


def test_one_update_keeps_the_rows_in_order():
    (part,) = cut(5, 1, epochs=1)

    assert prompts(part) == [0, 1, 2, 3, 4]


def test_fewer_sequences_than_minibatches_leave_no_empty_one():
    assert [len(part.batch.trajectories) for part in cut(2, 4, epochs=1)] == [1, 1]


def test_the_teachers_tokens_follow_their_rows():
    batch = batch_of(5)
    owner = np.repeat(np.arange(5), batch.num_actions)
    top = TopTokens(
        token_ids=np.stack([owner, owner + 100], axis=1).astype(np.int32),
        logprobs=np.stack([owner, -owner], axis=1).astype(np.float32),
    )

    parts = parts_of(batch, {}, top, per_epoch=2, epochs=1, seed=0, step=1)

    for part in parts:
        rows = np.repeat(prompts(part), part.batch.trajectories.num_actions)
        np.testing.assert_array_equal(part.batch.teacher_top.token_ids[:, 1], rows + 100)
        np.testing.assert_array_equal(part.batch.teacher_top.logprobs[:, 1], -rows)


SEGMENTS = [
    Uid(0, 0),
    Uid(0, 1, 0, 0),
    Uid(0, 1, 0, 1),
    Uid(0, 1, 1),
    Uid(0, 2, 0, 0),
    Uid(0, 2, 0, 1),
]
"""Four episodes, two of which have two rows."""


def part_episodes(part):
    return [uid._replace(segment=0) for uid in part.batch.trajectories.uids()]


@pytest.mark.parametrize("per_epoch", [1, 2, 4])
def test_the_rows_of_an_episode_are_in_one_minibatch_and_weigh_as_one(per_epoch):
    batch = batch_of(6, SEGMENTS)

    parts = parts_of(batch, {}, per_epoch=per_epoch, epochs=1, seed=3, step=1)

    assert sum(part.normalizers.num_sequences for part in parts) == 4
    for part in parts:
        rows = part.batch.trajectories
        assert part.normalizers.num_sequences == int(rows.episode.max()) + 1
        assert part.normalizers.num_actions == rows.num_actions.sum()
        # Rows 1 and 2 have 2 and 3 actions, rows 4 and 5 have 5 and 6.
        shares = {1: 2 / 5, 2: 3 / 5, 4: 5 / 11, 5: 6 / 11}
        tokens = rows.token_ids[rows.action_mask].tolist()
        expected = np.array([shares.get(token, 1.0) for token in tokens], dtype=np.float32)
        np.testing.assert_array_equal(part.batch.columns[ROW_WEIGHTS], expected)
    owners = [(uid.prompt, uid.sample) for part in parts for uid in set(part_episodes(part))]
    assert len(owners) == len(set(owners)) == 4


def test_episodes_of_one_row_bring_no_weights():
    """Nothing is multiplied by 1: runs without segments compute what they always did."""
    for part in cut(7, 3, epochs=1):
        assert ROW_WEIGHTS not in part.batch.columns


def test_episodes_of_several_rows_leave_no_empty_minibatch():
    """Three minibatches of four episodes: rows would have filled them otherwise."""
    parts = parts_of(batch_of(6, SEGMENTS), {}, per_epoch=3, epochs=1, seed=0, step=1)

    assert [part.normalizers.num_sequences for part in parts] == [2, 1, 1]
