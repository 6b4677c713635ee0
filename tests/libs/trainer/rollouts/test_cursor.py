"""The cursor goes through each epoch once and continues where a checkpoint left it."""

import pytest

from rlhf_core.contracts import Task, Uid
from rlhf_core.rng import generator_of
from rlhf_trainer.rollouts.prompts import Cursor


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


class Draws:
    """A sampler that draws what it is told."""

    def __init__(self, *indices):
        self.left = list(indices)
        self.requests = []

    def draw(self, request):
        self.requests.append(request)
        drawn, self.left = self.left[: request.count], self.left[request.count :]
        return drawn

    def state_dict(self):
        return {"left": self.left}


def test_a_prompt_that_is_drawn_again_gets_a_number_that_it_has_not_had():
    cursor = Cursor(FiveTasks(), 0, epochs=None, sampler=Draws(1, 1, 2, 1, 3, 3, 2, 1))

    (batch,) = taken(cursor, 8)

    # Five draws are an epoch: the sixth is in epoch 1, where prompt 3 is at its first draw and 1 at a later one.
    assert batch == [
        Uid(0, 1),
        Uid(1, 1),
        Uid(0, 2),
        Uid(2, 1),
        Uid(0, 3),
        Uid(1, 3),
        Uid(1, 2),
        Uid(3, 1),
    ]


@pytest.mark.parametrize("stop", range(9))
def test_numbers_go_on_after_a_resume(stop):
    drawn = (1, 1, 2, 1, 3, 3, 2, 1, 4)
    whole = taken(Cursor(FiveTasks(), 0, epochs=None, sampler=Draws(*drawn)), 9)[0]

    first = Cursor(FiveTasks(), 0, epochs=None, sampler=Draws(*drawn))
    before = taken(first, stop)[0]
    second = Cursor(
        FiveTasks(),
        0,
        epochs=None,
        sampler=Draws(*first.sampler_state["left"]),
        taken=first.taken,
        last_epochs=first.last_epochs,
    )
    after = taken(second, 9 - stop)[0]

    assert before + after == whole


def test_a_sampler_is_told_the_step_what_was_taken_and_what_is_in_flight():
    sampler = Draws(*range(5))
    cursor = Cursor(FiveTasks(), 0, epochs=1, sampler=sampler)

    cursor.take(3, step=1)
    cursor.take(3, step=2, in_flight=frozenset({1}))

    assert [(r.count, r.taken, r.step, set(r.in_flight)) for r in sampler.requests] == [
        (3, 0, 1, set()),
        (2, 3, 2, {1}),  # the epoch has no more
    ]


def test_without_a_sampler_nothing_is_kept():
    cursor = Cursor(FiveTasks(), 0, epochs=None)

    cursor.take(7)

    assert (cursor.sampler_state, cursor.last_epochs) == ({}, {})
