"""Tasks that an environment makes: named apart, the same at each call, plain data, and of splits that exist."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice

from rlhf_core.contracts.environment import MakesTasks

from ..subject import Subject, traits
from .material import EVAL, TRAIN, Row, environment_of, knows_answers, makes_tasks, rows_of, task_of
from .playing import (
    always,
    course_of,
    named,
    played,
    prompt_of,
    right,
    run,
    shown,
)

NUM_ROWS = 1000
"""Number of rows of a split that are looked at."""
NUM_READ = 256
"""Number of tasks of a split whose episodes are begun, to see what the policy reads."""
TURNS = 3
"""Answers that are given to a task to see what the policy reads."""
RIGHT_TURNS = 16
"""Turns of the right answers of the tasks that are compared."""
NO_SPLIT = "no such split"


@traits(makes_tasks, stands_alone=True)
def check_there_is_something_to_play(subject: Subject) -> None:
    """There is a split to train on, or one to evaluate on, and it has a task."""
    assert rows_of(subject, TRAIN, 1) or rows_of(subject, EVAL, 1), (
        f"neither {TRAIN!r} nor {EVAL!r} has a task"
    )


@traits(makes_tasks, stands_alone=True)
def check_task_keys_are_unique(subject: Subject) -> None:
    """Each task of a split has a key of its own, text or a number, or none has one."""
    for split in (TRAIN, EVAL):
        rows = rows_of(subject, split, NUM_ROWS)
        first: dict[object, int] = {}
        for number, row in enumerate(rows):
            key = row.get("key")
            if key is None:
                continue
            is_name = isinstance(key, str | int) and not isinstance(key, bool)
            assert is_name, (
                f"{split}, task {number}: the key {shown(key)}; expected text or a whole number"
            )
            assert key not in first, (
                f"{split}: tasks {first[key]} and {number} have the key {key!r}"
            )
            first[key] = number
        assert len(first) in (0, len(rows)), (
            f"{split}: {len(first)} of {len(rows)} tasks have a key; expected one for each"
        )


@traits(makes_tasks, stands_alone=True)
def check_tasks_are_the_same_each_time(subject: Subject) -> None:
    """A second call, on another instance, gives the same rows in the same order, so that a run can be resumed."""
    for split in (TRAIN, EVAL):
        rows, again = (rows_of(subject, split, NUM_ROWS) for _ in range(2))
        assert len(rows) == len(again), f"{split}: {len(rows)} tasks, then {len(again)}"
        for number, (one, other) in enumerate(zip(rows, again, strict=True)):
            assert _plain(one) == _plain(other), (
                f"{split}, task {number}: {shown(one)}, then {shown(other)}"
            )


@traits(makes_tasks, stands_alone=True)
def check_rows_are_plain(subject: Subject) -> None:
    """A row has names and values that JSON carries, and a prompt, if there is one, of text or messages."""
    for split in (TRAIN, EVAL):
        for number, row in enumerate(rows_of(subject, split, NUM_ROWS)):
            with named(f"{split}, task {number}"):
                assert isinstance(row, Mapping), f"it is {shown(row)}; expected a mapping"
                back = json.loads(json.dumps(dict(row), allow_nan=False))
                assert back == _listed(row), f"JSON changes it: {shown(row)} becomes {shown(back)}"
                json.dumps(dict(row), ensure_ascii=False).encode("utf-8")
                prompt_of(row)


@traits(makes_tasks, stands_alone=True)
def check_a_sequence_has_its_length(subject: Subject) -> None:
    """A split that is a sequence has a task at each index below its ``len``."""
    for split in (TRAIN, EVAL):
        maker = environment_of(subject)
        assert isinstance(maker, MakesTasks)
        try:
            rows = maker.tasks(split)
        except KeyError:
            continue
        if isinstance(rows, Sequence) and len(rows):
            try:
                rows[len(rows) - 1]
            except IndexError as error:
                raise AssertionError(
                    f"tasks({split!r}) says that it has {len(rows)} tasks; there is none at index {len(rows) - 1}"
                ) from error


@traits(makes_tasks, stands_alone=True)
def check_unknown_splits_are_refused(subject: Subject) -> None:
    """A split that is not there is a KeyError."""
    maker = environment_of(subject)
    assert isinstance(maker, MakesTasks)
    try:
        rows = list(islice(maker.tasks(NO_SPLIT), 1))
    except KeyError:
        return
    raise AssertionError(f"the split {NO_SPLIT!r} has tasks: {shown(rows)}; expected a KeyError")


@traits(makes_tasks, usual=True)
def check_splits_do_not_overlap(subject: Subject) -> None:
    """No task is both trained and evaluated on: neither a row without its key, nor what the policy reads of one."""
    trained = {_without_key(row) for row in rows_of(subject, TRAIN, NUM_ROWS)}
    both = [row for row in rows_of(subject, EVAL, NUM_ROWS) if _without_key(row) in trained]
    assert not both, f"{len(both)} tasks are in {TRAIN!r} and in {EVAL!r}, such as {shown(both[0])}"
    first: dict[str, int] = {}
    for number, question in enumerate(_questions(subject, TRAIN)):
        first.setdefault(question, number)
    evaluated = _questions(subject, EVAL) if first else []
    again = [
        (number, first[question]) for number, question in enumerate(evaluated) if question in first
    ]
    assert not again, (
        f"the policy reads {len(again)} of the first {len(evaluated)} tasks of {EVAL!r} in {TRAIN!r} too, such as "
        f"{EVAL} task {again[0][0]}, which is {TRAIN} task {again[0][1]}: {shown(evaluated[again[0][0]], 200)}"
    )


def _questions(subject: Subject, split: str) -> list[str]:
    """Return what tells a task apart, for the first tasks of a split: all that the policy reads and earns when it gives
    the same few answers under the same seed, and then the right ones where they are known. The first
    observation alone would not do, since a game whose secret differs begins with the same words."""
    rows = rows_of(subject, split, NUM_READ)
    has_oracle = knows_answers(subject) if rows else False

    async def ask() -> list[str]:
        found = []
        for number, row in enumerate(rows):
            with named(f"{split}, task {number}"):
                found.append(await _read_of(subject, row, has_oracle=has_oracle))
        return found

    return run(ask())


async def _read_of(subject: Subject, row: Row, *, has_oracle: bool) -> str:
    found = [] if row.get("prompt") is None else [_plain({"prompt": row["prompt"]})]
    task, answers = task_of(row, 0), always("1", "2", "3")
    found += course_of(await played(environment_of(subject), task, 0, answers, turns=TURNS))
    if has_oracle:
        episode = await played(environment_of(subject), task, 0, right, turns=RIGHT_TURNS)
        found += [*course_of(episode), *map(repr, episode.written)]
    return "\n".join(found)


def _plain(row: Row) -> str:
    return json.dumps(dict(row), default=repr, sort_keys=True)


def _without_key(row: Row) -> str:
    return _plain({name: value for name, value in row.items() if name != "key"})


def _listed(value: object) -> object:
    """Return a value with lists for tuples, as JSON has it."""
    if isinstance(value, Mapping):
        return {name: _listed(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_listed(each) for each in value]
    return value
