"""Tools in whole episodes of `multi_turn`: what is read, what is sampled, and what an environment's failure costs."""

import asyncio
import json

import pytest

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    Message,
    RolloutContext,
    SamplingParams,
    StepResult,
    Task,
    Uid,
)
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine, FakeRenderer
from rlhf_tools import ToolEnvironment


class Adding(ToolEnvironment):
    """The policy adds by a tool, and says the sum."""

    def __init__(self, broken=False):
        super().__init__([self.add])
        self.broken = broken

    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        if self.broken:
            raise RolloutError("the adder is gone")
        return a + b

    async def begin(self, task: Task, seed: int) -> list[Message]:
        return [{"role": "user", "content": "2+3"}]

    async def judge(self, action) -> StepResult:
        return StepResult(rewards={"right": float(action.text == "5")})


def play(script, *, broken=False, samples=(0,), **options):
    renderer = FakeRenderer()
    engine = FakeEngine(script)
    context = RolloutContext(
        engine=engine,
        renderer=renderer,
        sampling=SamplingParams(max_new_tokens=200),
        max_length=2000,
        seed=lambda sample, turn: 1000 * sample + turn + 1,
        environment=lambda task: Adding(broken),
    )
    executor = MultiTurn(MultiTurnConfig(**options))
    episodes = asyncio.run(executor.run(Task(uid=Uid(0, 0)), samples, context))
    return episodes, engine, renderer


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def test_a_call_is_answered_and_the_answer_is_judged():
    episodes, engine, renderer = play(
        lambda request, index: [call(a=2, b=3), "5"][request.turn], samples=range(3)
    )

    for one in episodes:
        assert [turn.reward for turn in one.turns] == [0.0, 1.0]
        assert one.metrics["env/tools/calls"] == 1.0
        assert one.metrics["end/finished"] == 1.0
    # The policy read the question and the tool, then its own call as it was sampled, then the result.
    last = renderer.decode(engine.requests[-1].prompt_ids)
    assert "2+3" in last
    assert last.endswith("[tool]5|[assistant]")
    assert call(a=2, b=3) in last


def test_the_actions_of_an_episode_are_the_policys_tokens_alone():
    (one,), _, renderer = play(lambda request, index: [call(a=2, b=3), "5"][request.turn])

    written = renderer.decode(one.token_ids[one.action_mask].tolist())
    assert written == call(a=2, b=3) + "5"


def test_errors_of_calls_are_read_and_can_be_mended():
    answers = [call(a="x", b=3), "<tool_call>{", call(a=2, b=3), "5"]
    (one,), engine, renderer = play(lambda request, index: answers[request.turn])

    read = [renderer.decode(request.prompt_ids) for request in engine.requests]
    assert "error (invalid_arguments): a: Input should be a valid integer" in read[1]
    assert "error (malformed_call)" in read[2]
    assert one.metrics["env/tools/errors"] == 2.0
    assert one.turns[-1].reward == 1.0


def test_an_environment_that_fails_in_a_tool_ends_the_run_or_costs_its_episode():
    script = lambda request, index: call(a=2, b=3)  # noqa: E731
    with pytest.raises(
        RolloutError, match="the adder is gone", check=has_code("environment/raised")
    ):
        play(script, broken=True)

    (one,), _, _ = play(script, broken=True, on_error="value", error_reward=-1.0)
    assert one.total_reward == -1.0
