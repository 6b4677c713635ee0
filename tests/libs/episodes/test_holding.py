"""Environments that hold the event loop of a run: each is named once, with the option that gives it a process."""

import asyncio
import logging
import time

import pytest

from rlhf_core import EnvironmentFailure
from rlhf_core.contracts import Action, Observation, StepResult, Task, Uid
from rlhf_episodes import GuardedEnvironment
from rlhf_episodes import guarded as guarded_module
from rlhf_episodes.holding import HELD_S, SPAN_S, LoopWatch
from rlhf_testing.errors import has_code


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(clock, monkeypatch):
    """A watch of this test's own, without its thread."""
    made = LoopWatch(clock)
    monkeypatch.setattr(made, "_look", lambda: None)
    return made


def computing(clock, seconds, waits=0.0):
    """A method that holds the loop for so long, before and after it waits."""

    async def step(action):
        clock.now += seconds
        await asyncio.sleep(0)
        clock.now += waits
        await asyncio.sleep(0)
        return action

    return step


def play(watch, step, times=1, name="maze"):
    async def run():
        for _ in range(times):
            assert await watch.run(name, "step", step, "north") == "north"

    asyncio.run(run())


def test_an_environment_that_holds_the_loop_is_named_once_with_the_way_out(watch, clock, caplog):
    play(watch, computing(clock, HELD_S + 1.0), times=3)

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "environment maze has held this process for 6.0 s, now in step" in caplog.text
    assert "--env.maze.isolation process" in caplog.text


def test_short_times_add_up_within_a_span(watch, clock, caplog):
    play(watch, computing(clock, 0.4), times=12)
    assert not caplog.text  # 4.8 s

    play(watch, computing(clock, 0.4))
    assert "has held this process for 5.2 s" in caplog.text


def test_times_far_apart_do_not_add_up(watch, clock, caplog):
    for _ in range(20):
        play(watch, computing(clock, 1.0))
        clock.now += SPAN_S

    assert not caplog.text


def test_times_of_two_environments_do_not_add_up(watch, clock, caplog):
    play(watch, computing(clock, 3.0), name="maze")
    play(watch, computing(clock, 3.0), name="shop")

    assert not caplog.text


def test_an_environment_that_waits_is_not_named(watch, clock, caplog):
    """It gives the loop back, however long its answer takes."""

    async def step(action):
        await elsewhere()
        return action

    async def elsewhere():
        task = asyncio.get_running_loop().create_task(other())
        await task

    async def other():
        clock.now += 10 * HELD_S

    play(watch, step, times=3)

    assert not caplog.text


def test_a_call_that_never_comes_back_is_named_while_it_holds_the_loop(watch, clock, caplog):
    async def step(action):
        clock.now += HELD_S + 2.0
        watch.look()  # as the thread does meanwhile
        assert "environment maze has held this process for 7.0 s" in caplog.text
        return action

    play(watch, step)

    assert len(caplog.records) == 1


def test_the_thread_looks_at_what_holds_a_real_loop(monkeypatch, caplog):
    from rlhf_episodes import holding

    monkeypatch.setattr(holding, "HELD_S", 0.1)
    monkeypatch.setattr(holding, "_LOOKS_S", 0.02)
    watch = LoopWatch()

    async def step(action):
        end = time.monotonic() + 10.0
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.01)
        return action

    play(watch, step)

    assert "environment maze has held this process" in caplog.text


def test_what_is_raised_and_who_cancels_go_through(watch):
    async def fails(action):
        await asyncio.sleep(0)
        raise ValueError(action)

    async def hangs(action):
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("closed")

    seen = []
    with pytest.raises(ValueError, match="north"):
        asyncio.run(watch.run("maze", "step", fails, "north"))

    async def cancelled():
        async with asyncio.timeout(0.01):
            await watch.run("maze", "step", hangs, "north")

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert seen == ["closed"]
    assert not watch._running


class Blocking:
    async def reset(self, task, seed):
        return Observation()

    async def step(self, action):
        self.clock.now += 2 * HELD_S
        if action.turn:
            raise ValueError("no")
        return StepResult(reward=1.0, done=True)

    async def close(self):
        pass


@pytest.mark.parametrize(("named", "expected"), [("shop", "shop"), ("", "maze")])
def test_the_guard_of_an_episode_names_it_as_the_run_does(
    watch, clock, caplog, monkeypatch, named, expected
):
    monkeypatch.setattr(guarded_module, "WATCH", watch)
    monkeypatch.setattr(Blocking, "clock", clock, raising=False)
    caplog.set_level(logging.WARNING)
    task = Task(uid=Uid(0, 0), prompt_ids=(1,), messages=(), row={}, dataset="d", environment=named)

    async def run():
        play = GuardedEnvironment(task.uid, Blocking, 60.0, "--limit", lambda: "maze@1")
        await play.reset(task, 0)
        result = await play.step(Action(text="a", token_ids=(5,), stop="eos", turn=0))
        with pytest.raises(
            EnvironmentFailure,
            match="step of maze@1 raised ValueError: no",
            check=has_code("environment/raised"),
        ):
            await play.step(Action(text="a", token_ids=(5,), stop="eos", turn=1))
        return result

    assert asyncio.run(run()).reward == 1.0
    assert f"environment {expected} has held" in caplog.text
    assert f"--env.{expected}.isolation process" in caplog.text
