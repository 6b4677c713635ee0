"""Cutting a batch into micro-batches."""

import numpy as np
import pytest

from rlhf_torch.rows.microbatch import ROOM, Runs, micro_batches, micro_batches_in_order


def parts(lengths, max_tokens):
    return [rows.tolist() for rows in micro_batches(np.array(lengths, dtype=np.int64), max_tokens)]


def test_everything_fits_into_one():
    assert parts([3, 1, 2], 6) == [[0, 1, 2]]


def test_long_sequences_are_placed_first_where_it_is_cheapest():
    # 9 | 8, then 2 joins the 8 and 1 joins the 9
    assert parts([1, 2, 8, 9], 10) == [[0, 3], [1, 2]]


def test_another_micro_batch_is_opened_where_the_fewest_do_not_suffice():
    # 18 tokens would fit into two of 10, but three sequences of 6 do not
    assert parts([6, 6, 6], 10) == [[0], [1], [2]]


def test_a_sequence_longer_than_the_limit_is_alone():
    assert parts([2, 50, 2], 10) == [[0, 2], [1]]


def test_no_sequences_make_no_micro_batch():
    assert parts([], 10) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_row_is_there_once_and_no_micro_batch_is_too_large(seed):
    lengths = np.random.default_rng(seed).integers(1, 40, 50)

    cut = micro_batches(lengths, 64)

    assert sorted(np.concatenate(cut).tolist()) == list(range(50))
    assert max(int(lengths[rows].sum()) for rows in cut) <= 64
    assert all((np.diff(rows) > 0).all() for rows in cut)


def test_costs_are_balanced():
    lengths = np.random.default_rng(0).integers(100, 2000, 64)

    cost = [
        float((lengths[r] + lengths[r] ** 2 / 4096).sum()) for r in micro_batches(lengths, 16384)
    ]

    assert max(cost) < 1.1 * min(cost)


def runs(lengths, shared=None, **options):
    lengths = np.asarray(lengths, dtype=np.int64)
    shared = np.zeros_like(lengths) if shared is None else np.array(shared, dtype=np.int64)
    return Runs(lengths=lengths, shared=shared, **options)


def in_order(lengths, max_tokens, shared=None, **options):
    cut = micro_batches_in_order(runs(lengths, shared, **options), max_tokens)
    return [rows.tolist() for rows in cut]


def test_rows_in_order_fill_no_more_micro_batches_than_they_must_and_evenly():
    # 3 + 3 | 3 would do with a limit of 8, and 2 micro-batches with one of 6 too
    assert in_order([3, 3, 3], 8) == [[0, 1], [2]]
    # a limit of 8 would give 4 + 4 | 1 + 1; with 6 it is 4 | 4 + 1 + 1, and with 5 one more
    assert in_order([4, 4, 1, 1], 8) == [[0], [1, 2, 3]]


def test_rows_in_order_longer_than_the_limit_are_alone():
    assert in_order([2, 50, 2], 10) == [[0], [1], [2]]
    assert in_order([50, 60], 10) == [[0], [1]]
    assert in_order([], 10) == []


@pytest.mark.parametrize("seed", range(5))
def test_rows_in_order_stay_in_order(seed):
    lengths = np.random.default_rng(seed).integers(1, 40, 50)

    cut = micro_batches_in_order(runs(lengths), 64)

    assert np.concatenate(cut).tolist() == list(range(50))
    assert max(int(lengths[rows].sum()) for rows in cut) <= 64


def test_shared_tokens_of_a_run_count_once():
    # 5 + 2 + 2 = 9 different tokens, then 5 + 2: the first row of a run brings its beginning along
    assert in_order([5, 5, 5, 5, 5], 9, [0, 3, 3, 3, 3]) == [[0, 1, 2], [3, 4]]
    assert in_order([5, 5, 5, 5, 5], 13, [0, 3, 3, 3, 3]) == [[0, 1, 2, 3, 4]]


def test_what_is_not_worth_sharing_counts_whole():
    # 5 + 4 different tokens of 10: a tenth is saved
    assert in_order([5, 5], 9, [0, 1], worth=0.1) == [[0, 1]]
    assert in_order([5, 5], 9, [0, 1], worth=0.11) == [[0], [1]]


def test_units_stay_together_and_share_within():
    # units of 4 + 1 and 1 + 1 own tokens
    assert in_order([4, 4, 4, 4], 7, [0, 3, 3, 3], rows_per_unit=2) == [[0, 1, 2, 3]]
    assert in_order([4, 4, 4, 4], 6, [0, 3, 3, 3], rows_per_unit=2) == [[0, 1], [2, 3]]


def test_whole_sequences_bound_a_run_too():
    """Rows that are all the same have 10 different tokens, however many they are."""
    cut = in_order([10] * (3 * ROOM), 10, [0] + [10] * (3 * ROOM - 1))

    assert [len(rows) for rows in cut] == [ROOM] * 3
