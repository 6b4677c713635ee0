"""Beginning and end of episodes: they end by themselves, a thousand live at once, and nothing is left of one."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.contracts.environment import EnvironmentKind

from ..subject import Subject, traits
from .material import (
    FEW_TASKS,
    environment_of,
    guesses,
    knows_answers,
    manifest_for,
    seed_for,
    tasks_of,
)
from .playing import MAX_TURNS, Situation, Written, Wrote, always, named, played, right, run, within

AT_ONCE = 1000
CANCELLED = 20
MAX_BLOCKED_S = 5.0
"""Seconds for which a call may hold the event loop, also on a busy machine."""
_SETTLE_S = 10.0
"""Seconds in which processes and threads of a closed episode have to be gone, also on a busy machine."""


def check_episodes_end(subject: Subject) -> None:
    """An episode ends by itself, whatever the policy writes; one of a single turn after that turn."""
    manifest = manifest_for(subject)
    single = manifest is not None and manifest.kind is EnvironmentKind.SINGLE_TURN
    most = 1 if single else MAX_TURNS
    for task in tasks_of(subject, FEW_TASKS):
        players = {"random letters": guesses(task), "no letters": always("")}
        if knows_answers(subject):
            players["right answers"] = right
        for what, player in players.items():
            with named(f"{what}, task {task.uid.prompt}"):
                environment = environment_of(subject)
                episode = run(played(environment, task, seed_for(task), player, turns=most))
                assert episode.ended, f"no end after {most} turns; expected done=True"


@traits(stands_alone=True)
def check_closing_without_an_episode(subject: Subject) -> None:
    """An instance that played nothing can be closed: a run makes one to ask it for tasks."""

    async def close() -> None:
        await within(environment_of(subject).close(), "close")

    with named("close of a fresh instance"):
        run(close())


def check_a_thousand_episodes_at_once(subject: Subject) -> None:
    """A thousand episodes are played at the same time on one event loop."""
    tasks = tasks_of(subject)

    async def all_at_once() -> None:
        meeting = asyncio.Event()
        waiting = 0

        async def gathered(situation: Situation) -> Written:
            nonlocal waiting
            if situation.turn == 0:
                waiting += 1
                if waiting == AT_ONCE:
                    meeting.set()
                await meeting.wait()
            return "1"

        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                task = tasks[number % len(tasks)]
                environment = environment_of(subject)
                group.create_task(played(environment, task, number, gathered, turns=2))

    try:
        run(all_at_once())
    except* Exception as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise AssertionError(
            f"of {AT_ONCE} episodes at once, {len(errors.exceptions)} failed; the first with {type(error).__name__}: "
            f"{error}"
        ) from error


def check_cancellation_leaves_nothing(subject: Subject) -> None:
    """Episodes that are cancelled in the middle leave no tasks, threads, processes and open files."""
    tasks = tasks_of(subject, FEW_TASKS)
    run(played(environment_of(subject), tasks[0], 0, always("1"), turns=2))  # What it makes once.
    before = _Held.now()

    async def cancelled() -> list[str]:
        players = [_stopped_at(number % 3) for number in range(CANCELLED)]
        running = [
            asyncio.create_task(
                played(environment_of(subject), tasks[number % len(tasks)], number, player, turns=3)
            )
            for number, player in enumerate(players)
        ]
        for number, one in enumerate(running):
            # Some are cancelled before they began, most in a call or between two.
            await asyncio.sleep(0.001 if number % 2 else 0)
            one.cancel()
        await within(
            asyncio.gather(*running, return_exceptions=True), "the end of what was cancelled"
        )
        for one in running:
            if not one.cancelled() and (error := one.exception()) is not None:
                raise AssertionError(f"cancelling it raised {type(error).__name__}: {error}")
        own = asyncio.current_task()
        return [str(one.get_coro()) for one in asyncio.all_tasks() if one is not own]

    with named("cancelled episodes"):
        left = run(cancelled())
    assert not left, f"cancelled episodes left {len(left)} tasks running, such as {left[0]}"
    more = _settled(before)
    assert not more, f"cancelled episodes left {', '.join(more)}"


@traits(deadline_s=60.0)
def check_steps_do_not_block(subject: Subject) -> None:
    """Waiting is done with await: no call holds the event loop for long."""
    task = tasks_of(subject, 1)[0]
    longest = 0.0

    async def beside() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        playing = asyncio.create_task(
            played(environment_of(subject), task, seed_for(task), always("1"), turns=3)
        )
        while not playing.done():
            before = loop.time()
            await asyncio.sleep(0.01)
            longest = max(longest, loop.time() - before - 0.01)
        await playing

    with named("an episode beside a clock"):
        run(beside())
    assert longest <= MAX_BLOCKED_S, (
        f"a call held the event loop for {longest:.1f} s, in which no other episode went on; expected at most "
        f"{MAX_BLOCKED_S:g} s. Wait with await, or move the work to asyncio.to_thread"
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """Threads, processes and files of this process."""

    threads: frozenset[str]
    processes: frozenset[str]
    files: tuple[str, ...]

    @classmethod
    def now(cls) -> _Held:
        return cls(
            frozenset(f"{one.name} ({one.ident})" for one in threading.enumerate()),
            frozenset(_children()),
            tuple(_open_files()),
        )

    def beyond(self, before: _Held) -> list[str]:
        """Return words for what is held now and was not before."""
        files = list(self.files)
        for name in before.files:
            if name in files:
                files.remove(name)
        return [
            *(f"thread {name}" for name in sorted(self.threads - before.threads)),
            *(f"process {name}" for name in sorted(self.processes - before.processes)),
            *(f"open file {name}" for name in files),
        ]


def _settled(before: _Held) -> list[str]:
    """Return what is held beyond ``before``, once it is nothing or the time is over."""
    give_up = time.monotonic() + _SETTLE_S
    while more := _Held.now().beyond(before):
        if time.monotonic() >= give_up:
            break
        gc.collect()
        time.sleep(0.05)
    return more


def _children() -> list[str]:
    """Return this process's children, where the system says so."""
    try:
        found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return found.split()


def _open_files() -> list[str]:
    """Return the targets of this process's file descriptors, where the system says so."""
    folder = "/proc/self/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = []
    for name in names:
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue  # The listing's own.
    return found


def _stopped_at(turn: int) -> Wrote:
    """Return a player that waits for ever at a turn."""

    async def write(situation: Situation) -> Written:
        if situation.turn == turn:
            await asyncio.Event().wait()
        return "1"

    return write
