"""Which responses come next, as a function of how many were taken."""

import numpy as np
import pytest

from rlhf_trainer.learning.parts import SupervisedRows


@pytest.fixture
def rows(batch_of):
    return batch_of({(prompt, 0): "pA" for prompt in range(10)})


def prompts(batch):
    return batch.uid[:, 1].tolist()


def test_an_epoch_has_every_row_once(rows):
    source = SupervisedRows(rows, 5, seed=3)

    assert sorted(prompts(source.take(0)) + prompts(source.take(5))) == list(range(10))
    assert sorted(prompts(source.take(10)) + prompts(source.take(15))) == list(range(10))


def test_epochs_have_orders_of_their_own(rows):
    source = SupervisedRows(rows, 5, seed=3)

    assert [prompts(source.take(5 * k)) for k in (0, 2, 4)] != [prompts(source.take(0))] * 3


def test_the_position_alone_decides(rows):
    one, other = SupervisedRows(rows, 4, seed=3), SupervisedRows(rows, 4, seed=3)
    one.take(0)

    np.testing.assert_array_equal(one.take(4).uid, other.take(4).uid)


def test_a_batch_over_the_end_of_an_epoch_has_no_row_twice(rows):
    source = SupervisedRows(rows, 7, seed=3)

    found = prompts(source.take(7))

    assert len(set(found)) == len(found) <= 7


def test_a_batch_is_never_larger_than_the_set(rows):
    source = SupervisedRows(rows, 64, seed=3)

    assert source.batch_size == 10
    assert prompts(source.take(0)) == list(range(10))
