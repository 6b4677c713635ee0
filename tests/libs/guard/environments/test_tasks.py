"""Tasks of an environment that runs elsewhere, read in pages."""

from itertools import islice

import pytest

from rlhf_config.isolation import IsolationOptions
from rlhf_core import DataError
from rlhf_guard.environments import task_pages
from rlhf_guard.environments import tasks as tasks_module
from rlhf_guard.environments.host import EnvironmentHost
from rlhf_guard.environments.task_pages import TaskPages
from rlhf_guard.environments.tasks import IndexedRows, IsolatedTasks
from rlhf_testing.errors import has_code

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.mark.slow
def test_tasks_of_a_worker_are_read_as_here(probe, monkeypatch, within):
    monkeypatch.setattr(tasks_module, "PAGE_ROWS", 64)
    tasks = IsolatedTasks(
        EnvironmentHost("probed", probe, "", IsolationOptions(isolation="process"))
    )
    try:
        assert tasks.makes_tasks()
        rows = tasks.tasks("train")
        assert len(rows) == 1000
        assert rows[999] == {"key": 999, "text": "xxxx"}
        assert [row["key"] for row in rows[60:70]] == list(range(60, 70))
        assert rows[-1]["key"] == 999
        with pytest.raises(IndexError):
            rows[1000]
        endless = tasks.tasks("endless")
        for _ in range(2):
            assert [row["key"] for row in islice(endless, 150)] == list(range(150))
        with pytest.raises(KeyError, match="nothing"):
            tasks.tasks("nothing")
        with pytest.raises(
            DataError,
            match=r"tasks of probed .*gave 'no row' as a task; expected a dict",
            check=has_code("environment/tasks-failed"),
        ):
            tasks.tasks("wrong")[0]
    finally:
        within(tasks.close())


def pages(tasks):
    class Made:
        def tasks(self, split):
            return tasks(split)

    return TaskPages(Made)


def generated(split):
    if split != "train":
        raise KeyError(split)
    for index in range(5):
        yield {"key": index}


def test_a_generator_says_which_splits_it_has_and_is_read_again_from_its_start(within):
    async def run():
        made = pages(generated)
        described = [await made.describe({"split": split}) for split in ("train", "eval")]
        read = [
            [
                row["key"]
                for row in (await made.rows({"split": "train", "start": at, "count": 2}))["rows"]
            ]
            for at in (0, 2, 4, 5, 1)
        ]
        return [one["has_split"] for one in described], read

    assert within(run()) == ([True, False], [[0, 1], [2, 3], [4], [], [1, 2]])


def test_an_environment_without_tasks_says_so(within):
    async def run():
        return await TaskPages(object).describe({"split": "train"})

    assert within(run()) == {"makes_tasks": False, "has_split": False, "length": None}


def test_large_rows_come_in_small_pages(within):
    async def run():
        made = pages(lambda split: [{"text": "x" * 2**20}] * 100)
        return await made.rows({"split": "train", "start": 0, "count": 100})

    assert len(within(run())["rows"]) == 8


def test_rows_that_take_long_come_one_by_one(within, monkeypatch):
    monkeypatch.setattr(task_pages, "MAX_PAGE_S", 0.0)

    async def run(tasks):
        made, found = pages(tasks), []
        request = {"split": "train", "count": 256}
        while page := (await made.rows({**request, "start": len(found)}))["rows"]:
            assert len(page) == 1
            found += page
        return [row["key"] for row in found]

    assert within(run(generated)) == list(range(5))
    assert within(run(lambda split: list(generated(split)))) == list(range(5))


def test_short_pages_leave_no_row_out():
    class Source:
        def page(self, start):
            return [{"key": index} for index in range(start, min(start + 3, 600))]

    rows = IndexedRows(Source(), 600)

    assert [rows[index]["key"] for index in range(600)] == list(range(600))
    assert rows[299]["key"] == 299
