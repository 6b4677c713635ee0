"""Requests of a harness as questions, and answers as chat completions."""

import asyncio
import json

import pytest

from rlhf_bridge_verifiers.asking import Asking, completion_of
from rlhf_core import RolloutError
from rlhf_core.contracts import Action, Stop, ToolCall
from rlhf_testing.errors import has_code


def answer(**fields):
    return Action(**{"text": "hm 7", "token_ids": (1,), "stop": Stop.EOS, "turn": 2, **fields})


def choice(action):
    (only,) = completion_of(action)["choices"]
    return only


def test_an_answer_is_a_chat_completion():
    plain = choice(answer())
    cut = choice(answer(stop=Stop.LENGTH))
    thought = choice(answer(reasoning="hm", content="7"))

    assert plain["message"] == {"role": "assistant", "content": "hm 7"}
    assert plain["finish_reason"] == "stop"
    assert cut["finish_reason"] == "length"
    assert thought["message"] == {
        "role": "assistant",
        "content": "7",
        "reasoning_content": "hm",
    }


def test_calls_have_ids_that_no_other_turn_has():
    calls = (ToolCall(name="f", arguments="{}"), ToolCall(name="g", arguments="{", id="mine"))

    made = choice(answer(content="", tool_calls=calls))

    assert made["finish_reason"] == "tool_calls"
    assert [call["id"] for call in made["message"]["tool_calls"]] == ["call_2_0", "mine"]
    assert [call["function"] for call in made["message"]["tool_calls"]] == [
        {"name": "f", "arguments": "{}"},
        {"name": "g", "arguments": "{"},
    ]


def test_half_of_a_surrogate_pair_is_replaced():
    text = json.dumps(completion_of(answer(text="a\ud800b")))

    assert "a?b" in text


def request(*texts, **fields):
    return {"messages": [{"role": "user", "content": text} for text in texts], **fields}


TOOL = {"type": "function", "function": {"name": "f"}}


def test_tools_are_kept_and_others_are_refused():
    async def run():
        async def ask(conversation):
            return answer()

        asking = Asking(ask)
        assert asking.tools is None
        await asking.completion("one", request("a", tools=[TOOL]))
        assert (asking.tools, asking.asked) == ((TOOL,), {"one"})
        with pytest.raises(RolloutError, check=has_code("environment/tools-changed")):
            await asking.completion("one", request("a"))
        return asking.refused.result()

    assert "offered other tools" in str(asyncio.run(run()))


def test_requests_that_wait_end_with_the_episode():
    async def run():
        async def ask(conversation):
            await asyncio.Event().wait()

        asking = Asking(ask)
        waiting = asyncio.ensure_future(asking.completion("one", request("a")))
        await asyncio.sleep(0)
        asking.close()
        await asyncio.wait({waiting})
        return waiting.cancelled(), asking.refused.done()

    assert asyncio.run(run()) == (True, False)
