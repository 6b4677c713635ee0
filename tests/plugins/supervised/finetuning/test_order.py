"""Which rows an update takes: each once an epoch, and a function of the update's number alone."""

import numpy as np
import pytest

from rlhf_plugin_supervised.finetuning.order import RowOrder


@pytest.mark.parametrize(("num_rows", "batch_size"), [(10, 3), (9, 3), (2, 5), (1, 1)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_is_taken_once_an_epoch(num_rows, batch_size, shuffle):
    order = RowOrder(num_rows, batch_size, 7, shuffle=shuffle)

    for epoch in range(3):
        first = epoch * order.updates_per_epoch
        taken = [order.rows(first + update) for update in range(order.updates_per_epoch)]
        assert sorted(np.concatenate(taken).tolist()) == list(range(num_rows))
        assert all(len(rows) == batch_size for rows in taken[:-1])


def test_without_shuffling_rows_come_in_their_order():
    order = RowOrder(7, 3, 0, shuffle=False)

    assert [order.rows(update).tolist() for update in range(4)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
        [0, 1, 2],
    ]


def test_epochs_have_orders_of_their_own_which_the_seed_gives():
    one, same, other = (RowOrder(64, 64 // 2, seed, shuffle=True) for seed in (3, 3, 4))

    assert one.rows(0).tolist() == same.rows(0).tolist()
    assert one.rows(0).tolist() != one.rows(2).tolist()
    assert one.rows(0).tolist() != other.rows(0).tolist()
