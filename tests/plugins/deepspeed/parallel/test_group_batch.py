"""The rows of a group's ranks, put together: all ranks take part, also one that has no rows."""

import threading

import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core.contracts import TopTokens, TrainBatch
from rlhf_plugin_deepspeed.parallel.group_batch import group_batch

WAIT_S = HANG_S


class Meeting:
    """Ranks in threads that give each other their arrays."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size, timeout=WAIT_S)
        self.given = [None] * size

    def group(self, rank):
        return Member(self, rank)


class Member:
    def __init__(self, meeting, rank):
        self.meeting, self.size, self.rank = meeting, meeting.size, rank

    def arrays_of_all(self, own):
        self.meeting.given[self.rank] = list(own)
        self.meeting.barrier.wait()
        found = list(self.meeting.given)
        self.meeting.barrier.wait()
        return found


def together(batches):
    """What ``group_batch`` returns on each rank; a rank that waits in vain raises."""
    meeting, found = Meeting(len(batches)), {}

    def work(rank, batch):
        try:
            found[rank] = group_batch(batch, meeting.group(rank))
        except threading.BrokenBarrierError as error:
            found[rank] = error

    threads = [
        threading.Thread(target=work, args=(rank, batch)) for rank, batch in enumerate(batches)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    for one in found.values():
        if isinstance(one, Exception):
            raise one
    return [found[rank] for rank in range(len(batches))]


def part(batch, rows):
    rows = np.asarray(rows, dtype=np.int64)
    index = batch.trajectories.action_index(rows)
    top = batch.teacher_top
    return TrainBatch(
        trajectories=batch.trajectories.select(rows),
        columns={name: column[index] for name, column in batch.columns.items()},
        teacher_top=top and TopTokens(token_ids=top.token_ids[index], logprobs=top.logprobs[index]),
        supervised=batch.supervised,
    )


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_every_rank_gets_all_rows_and_knows_its_own(material, cut):
    batch = material.make_batch(top=2)
    rows = np.arange(len(batch.trajectories))

    found = together([part(batch, rows[:cut]), part(batch, rows[cut:])])

    for one in found:
        whole = one.batch
        np.testing.assert_array_equal(whole.trajectories.token_ids, batch.trajectories.token_ids)
        np.testing.assert_array_equal(whole.trajectories.uid, batch.trajectories.uid)
        assert whole.columns.keys() == batch.columns.keys()
        for name, column in batch.columns.items():
            np.testing.assert_array_equal(whole.columns[name], column)
        np.testing.assert_array_equal(whole.teacher_top.token_ids, batch.teacher_top.token_ids)
    split = int(batch.trajectories.num_actions[:cut].sum())
    total = int(batch.trajectories.num_actions.sum())
    assert [(one.own.start, one.own.stop) for one in found] == [(0, split), (split, total)]


def test_a_rank_without_supervised_rows_takes_part_all_the_same(material):
    """It would leave the others waiting for it, in a collective call without it."""
    batch = material.make_batch(supervised=True)
    rows = np.arange(len(batch.trajectories))
    none = batch.supervised.select(np.arange(0))
    first = part(batch, rows[:1])
    second = TrainBatch(
        trajectories=batch.trajectories.select(rows[1:]),
        columns=part(batch, rows[1:]).columns,
        supervised=none,
    )

    found = together([first, second])

    for one in found:
        np.testing.assert_array_equal(one.batch.supervised.token_ids, batch.supervised.token_ids)
