"""Rows to ranks by cost."""

import numpy as np
import pytest

from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_plugin_ray.batches.sharding import (
    ATTENTION_SHARE,
    sequence_cost,
    split_batch,
    split_rows,
)


def test_the_longest_go_first_to_the_rank_with_the_least():
    # 9 -> rank 0; 7 -> rank 1; 6 -> rank 1 (13); 5 -> rank 0 (14); 4 -> rank 1 (17); 1 -> rank 0 (15).
    rows = split_rows(np.array([4, 9, 1, 7, 6, 5]), 2)

    assert [part.tolist() for part in rows] == [[1, 2, 5], [0, 3, 4]]


def test_attention_makes_one_long_sequence_dearer_than_many_short_ones():
    length = round(1 / ATTENTION_SHARE)

    cost = sequence_cost(np.array([length, 1]))

    # At the length 1 / share the two terms are equal.
    np.testing.assert_allclose(cost, [2 * length, 1 + ATTENTION_SHARE])
    rows = split_rows(np.array([length, *[length // 8] * 8]), 2)
    assert rows[0].tolist() == [0]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_each_row_has_one_rank_and_no_rank_much_more_than_the_mean(num_ranks):
    lengths = np.random.default_rng(0).integers(1, 4096, size=57)

    rows = split_rows(lengths, num_ranks)

    assert sorted(np.concatenate(rows).tolist()) == list(range(57))
    assert all((np.diff(part) > 0).all() for part in rows)
    cost = sequence_cost(lengths)
    filled = [cost[part].sum() for part in rows]
    assert max(filled) <= cost.sum() / num_ranks + cost.max()


def test_with_fewer_rows_than_ranks_the_last_ranks_get_none():
    rows = split_rows(np.array([3, 5]), 4)

    assert [part.tolist() for part in rows] == [[1], [0], [], []]


def test_equal_lengths_are_dealt_in_order():
    rows = split_rows(np.full(6, 10), 3)

    assert [part.tolist() for part in rows] == [[0, 3], [1, 4], [2, 5]]


def test_the_rows_of_a_unit_stay_together():
    # Units of 3 + 3, 9 + 1 and 4 + 1: 10 -> rank 0; 6 -> rank 1; 5 -> rank 1.
    rows = split_rows(np.array([3, 3, 9, 1, 4, 1]), 2, 2)

    assert [part.tolist() for part in rows] == [[2, 3], [0, 1, 4, 5]]


@pytest.mark.parametrize("rows_per_unit", [2, 3])
def test_each_unit_has_one_rank_and_no_rank_much_more_than_the_mean(rows_per_unit):
    lengths = np.random.default_rng(1).integers(1, 4096, size=60)

    rows = split_rows(lengths, 4, rows_per_unit)

    assert sorted(np.concatenate(rows).tolist()) == list(range(60))
    for part in rows:
        units = part.reshape(-1, rows_per_unit)
        assert (units[:, 0] % rows_per_unit == 0).all()
        assert (np.diff(units, axis=1) == 1).all()
    cost = sequence_cost(lengths)
    of_units = cost.reshape(-1, rows_per_unit).sum(axis=1)
    assert max(cost[part].sum() for part in rows) <= cost.sum() / 4 + of_units.max()


def test_with_fewer_units_than_ranks_the_last_ranks_get_none():
    rows = split_rows(np.array([3, 5]), 3, 2)

    assert [part.tolist() for part in rows] == [[0, 1], [], []]


def groups_of(count, samples, prompt, response):
    """Rows of groups whose responses have ``response(group, sample)`` tokens."""
    rows = []
    for group in range(count):
        for sample in range(samples):
            length = response(group, sample)
            mask = np.arange(prompt + length) >= prompt
            rows.append(
                Trajectory(
                    uid=Uid(0, group, sample),
                    token_ids=np.zeros(prompt + length, np.int32),
                    action_mask=mask,
                    rollout_logprobs=np.zeros(length, np.float32),
                    weight_version=np.zeros(length, np.int32),
                    turns=(Turn(start=prompt, end=prompt + length),),
                    reward=0.0,
                )
            )
    return TrajectoryColumns.from_trajectories(rows)


def test_rows_of_a_group_stay_together_where_ranks_then_compute_less():
    batch = groups_of(8, 4, 16, lambda group, sample: 32)

    rows = split_batch(batch, 4)

    assert [len(own) for own in rows] == [8] * 4
    assert [len(np.unique(batch.uid[own, 1])) for own in rows] == [2] * 4
    assert sorted(np.concatenate(rows).tolist()) == list(range(32))


@pytest.mark.parametrize(
    ("batch", "units"),
    [
        (groups_of(3, 8, 16, lambda group, sample: 32), 1),  # fewer groups than ranks
        (groups_of(4, 4, 4, lambda group, sample: 8 << (2 * group)), 1),  # one long group
        (groups_of(8, 4, 16, lambda group, sample: 32), 2),  # pairs
        (groups_of(8, 1, 16, lambda group, sample: 32), 1),
    ],
)
def test_rows_are_dealt_one_by_one_where_groups_would_fill_a_rank(batch, units):
    rows = split_batch(batch, 4, units)

    expected = split_rows(batch.num_tokens, 4, units)
    assert [own.tolist() for own in rows] == [own.tolist() for own in expected]
