"""The same episode again: after itself, beside others, and in another process."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence

from rlhf_core.batch.task import Task

from ..subject import Subject, traits
from .elsewhere import played_elsewhere, runs_elsewhere
from .material import (
    FEW_TASKS,
    environment_of,
    guesses,
    knows_answers,
    manifest_for,
    seed_for,
    tasks_of,
)
from .playing import (
    CheckedEpisode,
    Situation,
    Written,
    Wrote,
    always,
    course_of,
    named,
    played,
    right,
    run,
    shown,
)

TURNS = 12
"""Turns that are compared."""
TIMES = 3


def is_deterministic(subject: Subject) -> bool:
    """Return whether the environment promises that seed and actions decide; without a manifest it does."""
    manifest = manifest_for(subject)
    return manifest is None or manifest.deterministic


@traits(is_deterministic)
def check_episode_determinism(subject: Subject) -> None:
    """The same task, seed and answers give the same observations and the same end."""
    for what, first, again in _repeated(subject):
        before, after = first.observed, again.observed
        assert after == before, f"{what}: {_difference(before, after)}"
        ends = (first.turns, first.ended), (again.turns, again.ended)
        assert ends[0] == ends[1], f"{what}: (turns, ended) are {ends[0]}, then {ends[1]}"


@traits(is_deterministic)
def check_verifier_determinism(subject: Subject) -> None:
    """Episodes that went the same way earn the same rewards."""
    for what, first, again in _repeated(subject):
        if (first.observed, first.turns) == (again.observed, again.turns):
            assert repr(again.rewards) == repr(first.rewards), (
                f"{what}: rewards are {first.rewards}, then {again.rewards}"
            )


@traits(is_deterministic)
def check_no_shared_state(subject: Subject) -> None:
    """Episodes that are played at the same time are what they are one after the other."""
    tasks = tasks_of(subject, FEW_TASKS)
    players = [(task, player) for task in tasks for player in _players(subject, task)]

    async def together() -> list[CheckedEpisode]:
        return await asyncio.gather(
            *(_played(subject, task, _yielding(player)) for task, player in players)
        )

    with named("episodes at the same time"):
        beside = run(together())
    for (task, player), episode in zip(players, beside, strict=True):
        alone, again = (run(_played(subject, task, player)) for _ in range(2))
        if course_of(alone) == course_of(again):
            assert course_of(alone) == course_of(episode), (
                f"task {task.uid.prompt} beside {len(players) - 1} other episodes: "
                f"{_difference(course_of(alone), course_of(episode))}"
            )


def check_rows_stay_as_they_are(subject: Subject) -> None:
    """Playing a task changes nothing in its row, which other episodes and rewards read too."""
    for task in tasks_of(subject, FEW_TASKS):
        before = json.dumps(dict(task.row), default=repr, sort_keys=True)
        for player in _players(subject, task):
            run(_played(subject, task, player))
        after = json.dumps(dict(task.row), default=repr, sort_keys=True)
        assert after == before, f"task {task.uid.prompt}: the row was {before}, and is {after}"


@traits(runs_elsewhere)
def check_another_process_plays_the_same(subject: Subject) -> None:
    """A fresh process, in which text has other hashes, plays the same episodes."""
    tasks = tasks_of(subject, FEW_TASKS)
    answers = ["12", "yes", "b"]
    far = played_elsewhere(subject, tasks, answers)
    for task, course in zip(tasks, far, strict=True):
        near, again = (
            course_of(run(_played(subject, task, always(*answers), turns=len(answers))))
            for _ in range(2)
        )
        if near == again:
            assert course == near, f"task {task.uid.prompt}: {_difference(near, course)}"


async def _played(
    subject: Subject, task: Task, player: Wrote, turns: int = TURNS
) -> CheckedEpisode:
    return await played(environment_of(subject), task, seed_for(task), player, turns=turns)


def _players(subject: Subject, task: Task) -> list[Wrote]:
    return [guesses(task), always("1", "2", "3"), *([right] if knows_answers(subject) else [])]


def _yielding(player: Wrote) -> Wrote:
    """Return a player that lets other episodes go first."""

    async def write(situation: Situation) -> Written:
        await asyncio.sleep(0)
        return await player(situation)

    return write


def _repeated(subject: Subject) -> Iterator[tuple[str, CheckedEpisode, CheckedEpisode]]:
    """Yield pairs of episodes of the same task, seed and answers, with words for them; the generators that programs
    share have another state each time."""
    before = random.getstate()
    try:
        for task in tasks_of(subject, FEW_TASKS):
            for number, player in enumerate(_players(subject, task)):
                found = []
                for time in range(TIMES):
                    random.seed(time)
                    found.append(run(_played(subject, task, player)))
                for again in found[1:]:
                    yield f"task {task.uid.prompt}, player {number}", found[0], again
    finally:
        random.setstate(before)


def _difference(first: Sequence[object], again: Sequence[object]) -> str:
    """Return words for the first place at which two lists differ."""
    for number, (one, other) in enumerate(zip(first, again, strict=False)):
        if one != other:
            return f"number {number} is {shown(one)}, then {shown(other)}"
    return f"there are {len(first)}, then {len(again)}"
