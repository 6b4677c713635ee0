"""Which units an update takes: each once an epoch, and a function of the update's number alone."""

import numpy as np
import pytest

from rlhf_plugin_supervised.training.order import UnitOrder


@pytest.mark.parametrize(("num_units", "batch_size"), [(10, 3), (9, 3), (2, 5), (1, 1)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_unit_is_taken_once_an_epoch(num_units, batch_size, shuffle):
    order = UnitOrder([num_units], batch_size, 7, shuffle=shuffle)

    for epoch in range(3):
        first = epoch * order.updates_per_epoch
        taken = [order.units(first + update) for update in range(order.updates_per_epoch)]
        assert sorted(np.concatenate(taken).tolist()) == list(range(num_units))
        assert all(len(units) == batch_size for units in taken[:-1])


def test_without_shuffling_units_come_in_their_order():
    order = UnitOrder([4, 3], 3, 0, shuffle=False)

    assert [order.units(update).tolist() for update in range(4)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
        [0, 1, 2],
    ]


def test_epochs_have_orders_of_their_own_which_the_seed_gives():
    one, same, other = (UnitOrder([64], 64 // 2, seed, shuffle=True) for seed in (3, 3, 4))

    assert one.units(0).tolist() == same.units(0).tolist()
    assert one.units(0).tolist() != one.units(2).tolist()
    assert one.units(0).tolist() != other.units(0).tolist()


def test_a_mix_has_its_shares_in_each_epoch_and_repeats_no_unit():
    order = UnitOrder([10, 40], 5, 3, shuffle=True, probabilities=(0.5, 0.5))

    seen = []
    for epoch in range(4):
        first = epoch * order.updates_per_epoch
        taken = np.concatenate(
            [order.units(first + update) for update in range(order.updates_per_epoch)]
        )
        assert len(set(taken.tolist())) == len(taken) == 20
        assert (taken < 10).sum() == 10
        seen += taken[taken >= 10].tolist()
    assert sorted(seen) == list(range(10, 50)), "over four epochs the larger set is used up"


def test_a_mix_of_whole_sets_is_the_run_without_shares():
    plain = UnitOrder([3, 4], 7, 0, shuffle=False)

    assert plain.units(0).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert UnitOrder([3, 4], 7, 0, shuffle=False, probabilities=(0, 1)).units(0).tolist() == [
        3, 4, 5, 6,
    ]  # fmt: skip
