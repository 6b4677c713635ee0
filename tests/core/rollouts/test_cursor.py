"""The cursor goes through each epoch once and continues where a checkpoint left it."""

import pytest

from rlhf_core.contracts import Task, Uid
from rlhf_core.rng import generator_of
from rlhf_core.rollouts.cursor import Cursor


class FiveTasks:
    def __len__(self):
        return 5

    def order(self, epoch, seed):
        return generator_of(seed, "data", epoch).permutation(5)

    def task(self, index, epoch):
        return Task(uid=Uid(epoch, index))


def taken(cursor, *counts):
    return [[task.uid for task in cursor.take(count)] for count in counts]


def test_each_epoch_has_every_row_once():
    batches = taken(Cursor(FiveTasks(), 0, epochs=2), 3, 3, 3, 3)
    uids = [uid for batch in batches for uid in batch]

    assert sorted(uids) == [Uid(epoch, index) for epoch in (0, 1) for index in range(5)]


def test_the_last_batch_of_the_last_epoch_is_short():
    batches = taken(Cursor(FiveTasks(), 0, epochs=1), 3, 3, 3)

    assert [len(batch) for batch in batches] == [3, 2, 0]


def test_without_epochs_it_never_ends():
    (batch,) = taken(Cursor(FiveTasks(), 0, epochs=None), 23)

    assert len(set(batch)) == 23


@pytest.mark.parametrize("stop", range(12))
def test_resuming_takes_what_is_left(stop):
    whole = taken(Cursor(FiveTasks(), 7, epochs=None), 12)[0]

    first = Cursor(FiveTasks(), 7, epochs=None)
    before = taken(first, stop)[0]
    after = taken(Cursor(FiveTasks(), 7, epochs=None, taken=first.taken), 12 - stop)[0]

    assert before + after == whole
