"""Chats of episodes: what the template is told, and turns that fork where it shows the history in other words."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core.contracts import (
    Answer,
    ChatContinuation,
    Observation,
    Task,
    ToolCall,
    TrajectoryColumns,
    Uid,
)
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.conversation import Conversation
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_testing.fakes import FakeEngine, FakeRenderer

USER = {"role": "user", "content": "hi"}
TOOL = {"role": "tool", "content": "7"}
SCHEMA = {"type": "function", "function": {"name": "add", "parameters": {}}}
TASK = Task(uid=Uid(0, 0), messages=(USER,))


def test_answers_are_messages_with_thought_and_calls():
    chat = Conversation(TASK, Observation(messages=(USER,), tools=(SCHEMA,)))
    chat.answered(
        Answer(
            text="<think>so</think>",
            reasoning="so",
            content="",
            tool_calls=(ToolCall(name="add", arguments='{"a": 1}', id="c0"),),
        )
    )
    chat.observed(Observation(messages=(TOOL,)))
    chat.answered(Answer(text="7"))

    assert chat.tools == (SCHEMA,)
    assert chat.messages == [
        USER,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "so",
            "tool_calls": [
                {"type": "function", "id": "c0", "function": {"name": "add", "arguments": {"a": 1}}}
            ],
        },
        TOOL,
        {"role": "assistant", "content": "7"},
    ]


def test_an_empty_first_observation_is_the_tasks_chat():
    assert Conversation(TASK, Observation()).messages == [USER]
    assert Conversation(TASK, Observation(text="go")).messages == []


def test_an_observation_that_is_no_message_ends_the_chat():
    chat = Conversation(TASK, Observation())
    chat.answered(Answer(text="x"))
    chat.observed(Observation(text="y"))
    chat.answered(Answer(text="z"))

    assert chat.messages == []


class Stripping(FakeRenderer):
    """Its template shows earlier answers without their thoughts."""

    def extend(self, conversation, token_ids, messages, *, ended, tools=(), as_template=False):
        kept = super().extend(conversation, token_ids, messages, ended=ended, tools=tools)
        again = tuple(self.render([*conversation, *messages], tools))
        if not as_template or again == kept.token_ids:
            return kept
        return ChatContinuation(token_ids=again, forked=True, reason="thoughts are gone")


@pytest.mark.parametrize(("history", "segments"), [("as_sampled", 1), ("as_template", 3)])
def test_a_history_without_thoughts_is_a_fork(stage, counting, history, segments):
    """Every token is trained once either way, and each segment has the episode's reward, 0 + 1 + 2."""
    stage.engine = FakeEngine(lambda request, index: "<think>hm</think>It is seven, I think.")
    answer = Observation(messages=({"role": "user", "content": "more"},))
    context = stage.context(
        lambda: counting(3, first=Observation(messages=(USER,)), answer=lambda _: answer),
        more={"renderer": Stripping()},
    )

    async def play():
        async with asyncio.timeout(HANG_S):
            return await MultiTurn(MultiTurnConfig(history=history)).run(TASK, [0], context)

    rows = asyncio.run(play())

    assert len(rows) == segments
    written = [token for one in rows for token in one.token_ids[one.action_mask].tolist()]
    assert written == [token for action in stage.made[0].actions for token in action.token_ids]
    assert TrajectoryColumns.from_trajectories(rows).total_reward.tolist() == [3.0] * segments
    assert stage.made[0].actions[1].reasoning == "hm"
    if history == "as_template":
        assert rows[0].metrics["graph/segments"] == 3
        assert rows[0].metrics["graph/rerendered_turns"] > 0
        turn = "[assistant]It is seven, I think.|[user]more|"
        last = context.renderer.decode(rows[-1].token_ids.tolist())
        assert last.startswith(f"[user]hi|{turn}{turn}[assistant]<think>")


def test_calls_in_tags_have_the_types_that_the_environments_tools_say(stage, counting):
    """Qwen3-Coder writes the values of calls as plain text."""
    from tests.libs.data.chat.zoo import renderer_of

    renderer = renderer_of("hermes")
    text = (
        "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
        "<parameter=note>\n12\n</parameter>\n</function>\n</tool_call><|im_end|>"
    )
    types = {"a": {"type": "integer"}, "exact": {"type": "boolean"}, "note": {"type": "string"}}
    schema = {"name": "add", "parameters": {"type": "object", "properties": types}}
    ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]

    class Calling(FakeEngine):
        async def generate(self, request):
            (one,) = await super().generate(request)
            return [completion_of(one, ids)]

    stage.engine = Calling()
    first = Observation(messages=(USER,), tools=({"type": "function", "function": schema},))
    context = stage.context(
        lambda: counting(2, first=first, answer=lambda _: Observation(messages=(TOOL,))),
        more={"renderer": renderer},
    )

    async def play():
        async with asyncio.timeout(HANG_S):
            return await MultiTurn(MultiTurnConfig()).run(TASK, [0], context)

    (row,) = asyncio.run(play())

    for action in stage.made[0].actions:
        (call,) = action.tool_calls
        assert json.loads(call.arguments) == {"a": 12, "exact": True, "note": "12"}
    assert row.metrics["whole_chats"] == 0.0


def completion_of(made, ids):
    return replace(
        made,
        token_ids=np.array(ids, dtype=np.int32),
        logprobs=np.zeros(len(ids), dtype=np.float32),
        weight_version=np.zeros(len(ids), dtype=np.int32),
    )
