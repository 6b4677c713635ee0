"""Turns of an episode with tools."""

import asyncio

import pytest

from rlhf_core import RolloutError
from rlhf_core.contracts import Action, StepResult, Stop, Task, ToolCall, Uid
from rlhf_testing.errors import has_code
from rlhf_tools import ToolEnvironment, ToolLimits

TASK = Task(uid=Uid(0, 0), row={"answer": "5"})


class Sums(ToolEnvironment):
    def __init__(self, limits=None):
        super().__init__([self.add], limits)
        self.sums = 0

    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.sums += 1
        return a + b

    async def begin(self, task, seed):
        self.answer = task.row["answer"]
        return [{"role": "user", "content": "2 + 3?"}]

    async def judge(self, action):
        return StepResult(reward=float(action.text == self.answer), metrics={"sums": self.sums})

    async def called(self, action, results):
        return StepResult(rewards={"asked": 0.25})


def action(text="", *calls, turn=0):
    return Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn, tool_calls=calls)


def play(environment, *actions):
    async def episode():
        first = await environment.reset(TASK, 0)
        results = [await environment.step(one) for one in actions]
        await environment.close()
        return first, results

    return asyncio.run(episode())


def test_the_first_observation_has_messages_and_tools():
    first, _ = play(Sums())

    assert first.messages == ({"role": "user", "content": "2 + 3?"},)
    assert [tool["function"]["name"] for tool in first.tools] == ["add"]


def test_calls_are_answered_and_an_answer_without_calls_ends_the_episode():
    call = ToolCall(name="add", arguments='{"a": 2, "b": 3}', id="c7")
    _, (called, answered) = play(Sums(), action("", call), action("5", turn=1))

    assert not called.done
    assert called.rewards == {"asked": 0.25}
    (message,) = called.observation.messages
    assert message == {"role": "tool", "tool_call_id": "c7", "name": "add", "content": "5"}
    assert called.metrics["tools/calls"] == 1.0
    assert answered.done
    assert (answered.reward, answered.metrics["sums"], answered.metrics["tools/calls"]) == (1, 1, 1)


def test_a_malformed_call_is_answered_and_the_episode_goes_on():
    malformed = Action(
        text="{", token_ids=(), stop=Stop.EOS, turn=0, malformed=("expected JSON, got '{'",)
    )
    _, (told, answered) = play(Sums(), malformed, action("5", turn=1))

    (message,) = told.observation.messages
    assert message["content"] == "error (malformed_call): expected JSON, got '{'"
    assert not told.done
    assert answered.done
    assert answered.metrics["tools/errors/malformed_call"] == 1.0


def test_a_turn_may_have_good_and_malformed_calls():
    call = ToolCall(name="add", arguments='{"a": 2, "b": 3}', id="c7")
    both = Action(
        text="", token_ids=(), stop=Stop.EOS, turn=0, tool_calls=(call,), malformed=("no name",)
    )
    _, (told,) = play(Sums(), both)

    assert [message["content"] for message in told.observation.messages] == [
        "5",
        "error (malformed_call): no name",
    ]


def test_episodes_share_no_state():
    call = ToolCall(name="add", arguments='{"a": 2, "b": 3}')
    one, other = Sums(), Sums()
    play(one, action("", call), action("5"))
    _, (answered,) = play(other, action("4"))

    assert answered.metrics["sums"] == 0
    assert answered.metrics["tools/calls"] == 0.0


def test_limits_are_those_of_the_environment():
    call = ToolCall(name="add", arguments='{"a": 2, "b": 3}')
    _, (called,) = play(Sums(ToolLimits(max_calls_per_turn=1)), action("", call, call))

    assert called.observation.messages[1]["content"].startswith("error (limit)")


def test_a_failed_environment_ends_the_episode_as_an_error():
    class Broken(Sums):
        async def add(self, a: int, b: int) -> int:
            """Add two numbers."""
            raise RolloutError("the database is gone")

    call = ToolCall(name="add", arguments='{"a": 2, "b": 3}')
    with pytest.raises(RolloutError, match="database", check=has_code("rollout/failed")):
        play(Broken(), action("", call))
