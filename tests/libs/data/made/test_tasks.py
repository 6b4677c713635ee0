"""Order and names of tasks that environments make."""

from collections import Counter
from itertools import count

import pytest

from rlhf_core.contracts import Uid
from rlhf_data.made.rows import made_rows
from rlhf_data.made.tasks import MadePart, MadeTasks


def counted(name, size, share=1.0):
    rows = made_rows(lambda: [{"key": f"{name}{n}"} for n in range(size)], name)
    return MadePart(environment=name, share=share, rows=rows)


def streamed(name, share=1.0):
    rows = made_rows(lambda: ({"key": f"{name}{n}"} for n in count()), name)
    return MadePart(environment=name, share=share, rows=rows)


def empty(name, share=1.0):
    return MadePart(environment=name, share=share)


def keys(tasks, epoch, seed=0):
    return [tasks.task(int(i), epoch).row.get("key") for i in tasks.order(epoch, seed)]


def players(tasks, epoch, seed=0):
    return [tasks.task(int(i), epoch).environment for i in tasks.order(epoch, seed)]


def test_an_epoch_has_every_row_once_in_an_order_of_seed_and_epoch():
    tasks = MadeTasks([counted("a", 20)], 4, shuffle=True)

    first, second = keys(tasks, 0), keys(tasks, 1)
    assert sorted(first) == sorted(second) == sorted(f"a{n}" for n in range(20))
    assert first != second
    assert first == keys(MadeTasks([counted("a", 20)], 4, shuffle=True), 0)
    assert first != keys(tasks, 0, seed=1)


def test_without_shuffle_the_rows_come_in_their_order():
    tasks = MadeTasks([counted("a", 3)], 4)

    assert keys(tasks, 5) == ["a0", "a1", "a2"]


def test_a_stream_goes_on_in_the_next_epoch_in_its_own_order():
    tasks = MadeTasks([streamed("s")], 3, shuffle=True)

    assert len(tasks) == 3
    assert keys(tasks, 0) + keys(tasks, 1) == [f"s{n}" for n in range(6)]


def test_a_mix_of_parts_with_lengths_repeats_no_row_in_an_epoch_and_reaches_all_over_epochs():
    tasks = MadeTasks([counted("a", 30, 0.75), counted("b", 40, 0.25)], 4, shuffle=True)

    # a is scarcest for its share: 30 / 0.75 = 40 tasks, 10 of them b's.
    epochs = [keys(tasks, epoch) for epoch in range(4)]
    for found in epochs:
        assert len(found) == len(set(found)) == len(tasks) == 40
        assert sum(key.startswith("a") for key in found) == 30
    assert len({key for found in epochs for key in found}) == 70


def test_any_stretch_of_a_mix_has_its_shares():
    tasks = MadeTasks([streamed("s", 0.7), empty("e", 0.3)], 8, shuffle=True)
    found = players(tasks, 0)

    assert len(found) == 1000
    for start in range(0, 990, 10):
        assert 6 <= Counter(found[start : start + 10])["s"] <= 8


def test_streams_of_a_mix_are_read_in_order_too():
    tasks = MadeTasks([streamed("s", 0.5), counted("a", 500, 0.5)], 8, shuffle=True)

    read = [key for epoch in (0, 1) for key in keys(tasks, epoch) if key.startswith("s")]
    assert read == [f"s{n}" for n in range(1000)]


def test_a_small_share_is_played_too():
    found = Counter(players(MadeTasks([empty("a", 0.99), empty("b", 0.01)], 4), 0))

    assert found == {"a": 990, "b": 10}


def test_every_uid_is_one_task_for_ever():
    parts = [counted("a", 7, 0.5), streamed("s", 0.25), empty("e", 0.25)]
    tasks = MadeTasks(parts, 4, shuffle=True)
    seen = {}
    for epoch in range(3):
        for index in tasks.order(epoch, 3):
            task = tasks.task(int(index), epoch)
            assert task.uid == Uid(epoch, int(index))
            assert task.dataset == task.environment
            assert task.uid not in seen
            seen[task.uid] = (task.environment, dict(task.row))
    again = MadeTasks([counted("a", 7, 0.5), streamed("s", 0.25), empty("e", 0.25)], 4)
    for uid, (environment, row) in reversed(seen.items()):
        task = again.task(uid.prompt, uid.epoch)
        assert (task.environment, task.row) == (environment, row)


def test_empty_tasks_differ_in_their_uid_alone():
    tasks = MadeTasks([empty("")], 6)

    assert len(tasks) == 6
    assert tasks.order(2, 0).tolist() == list(range(6))
    task = tasks.task(3, 2)
    assert (task.uid, task.prompt_ids, task.row, task.messages) == (Uid(2, 3), (), {}, ())
    assert (task.dataset, task.environment) == ("environment", "")


@pytest.mark.parametrize("index", [-1, 6])
def test_an_index_of_no_task_is_refused(index):
    with pytest.raises(IndexError, match="no task has index"):
        MadeTasks([empty("")], 6).task(index, 0)
