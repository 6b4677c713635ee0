"""The file of episodes: what is kept of one that was cut, and what is refused."""

from __future__ import annotations

import pytest

from rlhf_core import ResumeError
from rlhf_core.contracts import Task, Uid
from rlhf_plugin_inference.evaluate.jobs import Work, digest_of
from rlhf_plugin_inference.evaluate.records import (
    EpisodeRecord,
    Segment,
    keep_whole_jobs,
)
from rlhf_plugin_inference.worklist.record_lines import read_records
from rlhf_testing.errors import has_code

ROWS = [{"prompt": "a"}, {"prompt": "b", "key": "second"}, {"prompt": "c"}]


class Rows:
    def __init__(self, rows=ROWS):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def task(self, index, epoch):
        return Task(uid=Uid(epoch, index), row=self.rows[index])


def work(rows=ROWS):
    return Work({"s": Rows(rows)}, (0.0, 1.0), count=2, draws=False)


def record(job, sample):
    return EpisodeRecord(
        set=job.set,
        temperature=job.temperature,
        uid=str(job.task.uid._replace(sample=sample)),
        task=job.key,
        digest=job.digest,
        prompt="é\n",
        messages=({"role": "user", "content": "x"},),
        response="r",
        segments=(Segment(token_ids=(1, 2, 3), turns=((1, 3),)),),
        reward=0.1,
        end="finished",
        turns=1,
        tokens_in=1,
        tokens_out=2,
        truncated=False,
    )


def write(path, jobs):
    lines = [record(job, sample).to_line() for job in jobs for sample in range(job.samples)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return lines


def test_the_work_is_every_task_at_every_temperature_with_greedy_ones_once():
    jobs = list(work().jobs())

    assert len(jobs) == len(work()) == 6
    assert [(job.number, job.temperature, job.key, job.samples) for job in jobs] == [
        (0, 0.0, "0", 1),
        (1, 0.0, "second", 1),
        (2, 0.0, "2", 1),
        (3, 1.0, "0", 2),
        (4, 1.0, "second", 2),
        (5, 1.0, "2", 2),
    ]


def test_a_digest_names_a_row_whatever_the_order_of_its_columns():
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
    assert len(digest_of({"a": object, "b": "\ud800"})) == 16


def test_an_episode_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "e.jsonl"
    jobs = list(work().jobs())
    write(path, jobs)

    assert list(read_records(path, EpisodeRecord)) == [
        record(job, n) for job in jobs for n in range(job.samples)
    ]


def test_whatever_a_kill_leaves_the_file_is_cut_behind_its_last_whole_job(tmp_path):
    path = tmp_path / "e.jsonl"
    lines = write(path, work().jobs())
    whole = path.read_bytes()
    ends = [0]
    for job in work().jobs():
        ends.append(ends[-1] + sum(len(lines.pop(0)) + 1 for _ in range(job.samples)))

    for size in {*range(0, len(whole), 97), *ends, *(end - 1 for end in ends[1:])}:
        path.write_bytes(whole[:size])
        count = sum(end <= size for end in ends) - 1

        assert keep_whole_jobs(path, work().jobs()) == count
        assert path.read_bytes() == whole[: ends[count]]


def test_a_file_that_is_not_there_has_no_jobs(tmp_path):
    assert keep_whole_jobs(tmp_path / "none", work().jobs()) == 0


@pytest.mark.parametrize(
    "rows",
    [[{"prompt": "a"}, {"prompt": "other"}, {"prompt": "c"}], [{"prompt": "a"}]],
)
def test_other_tasks_are_refused(tmp_path, rows):
    path = tmp_path / "e.jsonl"
    write(path, work().jobs())

    with pytest.raises(ResumeError, match=r"e\.jsonl:2", check=has_code("resume/data-changed")):
        keep_whole_jobs(path, work(rows).jobs())


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"segments": [1], "messages": null}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "e.jsonl"
    first, *_ = write(path, work().jobs())
    path.write_text(f"{first}\n{line}\n")

    with pytest.raises(
        ResumeError, match=r"e\.jsonl:2.*--resume restart", check=has_code("resume/damaged")
    ):
        list(read_records(path, EpisodeRecord))
    with pytest.raises(
        ResumeError, match=r"e\.jsonl:2.*--resume restart", check=has_code("resume/damaged")
    ):
        keep_whole_jobs(path, work().jobs())
