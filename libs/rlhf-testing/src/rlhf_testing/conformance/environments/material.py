"""Tasks, seeds and answers that checks of environments play with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from rlhf_core.batch.task import Task, Uid
from rlhf_core.contracts.environment import (
    Environment,
    EnvironmentManifest,
    KnowsAnswers,
    MakesTasks,
    manifest_of,
)

from ..subject import Subject, traits
from .playing import ORACLE, Situation, Written, Wrote, prompt_of

NUM_TASKS = 16
"""Number of tasks that a check plays."""
FEW_TASKS = 4
TRAIN = "train"
EVAL = "eval"
RESULTS = "check_results_are_well_formed"
"""Check without which rewards cannot be compared."""

Row = Mapping[str, Any]

_ASKED: Row = {"prompt": [{"role": "user", "content": "Hello."}]}


def environment_of(subject: Subject) -> Environment:
    """Return a fresh instance."""
    made: Environment = subject.make()
    return made


def manifest_for(subject: Subject) -> EnvironmentManifest | None:
    """Return the manifest, if the environment has one."""
    return manifest_of(environment_of(subject))


def makes_tasks(subject: Subject) -> bool:
    """Return whether the environment makes tasks."""
    return isinstance(environment_of(subject), MakesTasks)


def rows_of(subject: Subject, split: str, count: int) -> list[Row]:
    """Return the first rows of a split; none if the environment makes no tasks or lacks the split."""
    maker = environment_of(subject)
    if not isinstance(maker, MakesTasks):
        return []
    try:
        rows = maker.tasks(split)
        if isinstance(rows, Sequence):
            return [rows[index] for index in range(min(count, len(rows)))]
        return list(islice(rows, count))
    except KeyError:
        return []


def tasks_of(subject: Subject, count: int = NUM_TASKS) -> list[Task]:
    """Return tasks to play: of the split to train on or, without one, of that to evaluate on; for an environment that
    makes no tasks, a chat that says hello."""
    rows: Iterable[Row] = rows_of(subject, TRAIN, count) or rows_of(subject, EVAL, count)
    rows = list(rows) or [_ASKED] * count
    return [task_of(row, number) for number, row in enumerate(rows)]


def task_of(row: Row, number: int) -> Task:
    """Return a row as a task."""
    ids, messages = prompt_of(row)
    return Task(uid=Uid(0, number), prompt_ids=ids, messages=messages, row=row, dataset="checked")


def seed_for(task: Task) -> int:
    """Return the seed of a task's episodes."""
    return random.Random(f"episode {task.uid}").getrandbits(64)


def knows_answers(subject: Subject) -> bool:
    """Return whether the environment, or each of its rows, has right answers."""
    environment = environment_of(subject)
    if isinstance(environment, KnowsAnswers):
        return True
    tasks = tasks_of(subject, 1)
    return bool(tasks) and ORACLE in tasks[0].row


of_known_answers = traits(knows_answers, rests_on=RESULTS)
"""Makes a check of a function that compares what right answers earn."""


def guesses(task: Task) -> Wrote:
    """Return a player that writes a few random letters and digits, a function of task and turn."""

    async def write(situation: Situation) -> Written:
        draw = random.Random(f"answer {situation.turn} to {task.uid}")
        return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789 ", k=12))

    return write
