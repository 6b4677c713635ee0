"""Orders, shares and splits are functions of (seed, epoch) and repeat nothing."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlhf_data.mixing import epoch_counts, epoch_order

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)


@st.composite
def mixes(draw):
    sizes = draw(SIZES)
    weights = draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    return sizes, [weight / sum(weights) for weight in weights]


def order_of(sizes, probabilities=(), *, epoch=0, seed=0, shuffle=True):
    return epoch_order(sizes, probabilities, epoch=epoch, seed=seed, shuffle=shuffle).tolist()


@given(SIZES, st.integers(0, 5), st.integers(0, 2**62))
def test_without_shares_an_epoch_is_a_permutation_of_all_rows(sizes, epoch, seed):
    assert sorted(order_of(sizes, epoch=epoch, seed=seed)) == list(range(sum(sizes)))


@given(mixes(), st.integers(0, 20), st.booleans())
def test_a_mix_repeats_no_row_in_an_epoch(mix, epoch, shuffle):
    sizes, shares = mix
    order = order_of(sizes, shares, epoch=epoch, shuffle=shuffle)

    assert len(set(order)) == len(order) == sum(epoch_counts(sizes, shares))
    assert min(order) >= 0
    assert max(order) < sum(sizes)


@given(mixes())
def test_some_set_of_a_mix_is_used_up(mix):
    sizes, shares = mix

    assert any(
        count == size for count, size in zip(epoch_counts(sizes, shares), sizes, strict=True)
    )


def test_shares_by_hand():
    # 100 rows at share 0.25 allow a mix of 400; 150 at 0.75 allow one of 200: the smaller counts
    assert epoch_counts([100, 150], [0.25, 0.75]) == [50, 150]
    assert epoch_counts([100, 150], []) == [100, 150]
    assert epoch_counts([10, 1000], [0.0, 1.0]) == [0, 1000]


def test_a_tiny_share_still_gives_a_row():
    assert epoch_counts([1000, 10], [0.001, 0.999]) == [1, 10]


def test_over_the_epochs_of_a_mix_all_rows_come_equally_often():
    # 10 of 40 rows an epoch: four epochs are one pass over the first set
    seen = Counter(p for epoch in range(8) for p in order_of([40, 10], [0.5, 0.5], epoch=epoch))

    assert [seen[row] for row in range(40)] == [2] * 40
    assert [seen[row] for row in range(40, 50)] == [8] * 10


def test_unshuffled_sets_are_interleaved_evenly():
    order = np.array(order_of([9, 3], [0.75, 0.25], shuffle=False))

    assert order[order < 9].tolist() == list(range(9))
    assert [int((order[i : i + 4] >= 9).sum()) for i in (0, 4, 8)] == [1, 1, 1]


def test_unshuffled_and_unmixed_rows_keep_their_order():
    assert order_of([3, 2], shuffle=False, epoch=4) == [0, 1, 2, 3, 4]


def test_the_order_depends_on_seed_and_epoch_alone():
    assert order_of([50]) == order_of([50])
    assert order_of([50]) != order_of([50], epoch=1)
    assert order_of([50]) != order_of([50], seed=1)
