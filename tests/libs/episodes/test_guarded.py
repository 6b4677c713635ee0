"""The guard around an environment: what it says of a call that takes too long, whoever plays."""

import asyncio

import pytest

from rlhf_core import EnvironmentFailure
from rlhf_core.contracts import Observation, Task, Uid
from rlhf_episodes import GuardedEnvironment
from rlhf_testing.errors import has_code

OPTIONS = ("--rollout.multi_turn.environment_timeout_s", "--remote.environment_timeout_s")


class Waits:
    """An environment whose first observation comes when somebody lets it."""

    def __init__(self):
        self.lets = asyncio.Event()

    async def reset(self, task, seed):
        await self.lets.wait()
        return Observation(text="go")


@pytest.mark.parametrize("option", OPTIONS)
def test_a_call_that_takes_too_long_names_the_option_to_raise(option):
    guarded = GuardedEnvironment(Uid(0, 3), Waits, 0.001, option)

    with pytest.raises(
        EnvironmentFailure,
        match=rf"0\.3\.0\.0, turn 0: reset of Waits did not return within 0.001 s; .* raise {option}$",
        check=has_code("environment/too-slow"),
    ):
        asyncio.run(guarded.reset(Task(uid=Uid(0, 3)), 0))


def test_a_longer_limit_lets_the_same_call_end():
    environment = Waits()
    guarded = GuardedEnvironment(Uid(0, 3), lambda: environment, 60.0, OPTIONS[0])
    environment.lets.set()

    assert asyncio.run(guarded.reset(Task(uid=Uid(0, 3)), 0)).text == "go"


class LooksTwice:
    """An environment that does two things at once, one of which fails."""

    async def reset(self, task, seed):
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(self.look())

    async def look(self):
        raise FileNotFoundError("no board.txt")


def test_what_failed_within_a_group_of_tasks_is_named():
    guarded = GuardedEnvironment(Uid(0, 3), LooksTwice, 60.0, OPTIONS[0])

    with pytest.raises(
        EnvironmentFailure,
        match=r"reset of LooksTwice raised FileNotFoundError: no board\.txt$",
        check=has_code("environment/raised"),
    ):
        asyncio.run(guarded.reset(Task(uid=Uid(0, 3)), 0))
