"""Agents that rewrite the ids of tool calls go on with the tokens that they sampled, as those that keep them do."""

import httpx
import pytest

from rlhf_testing.fakes import FakeEngine

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
RENAMED = {
    "kept": lambda name, turn: name,
    "with a prefix more": lambda name, turn: f"call_{name}",
    "without a prefix": lambda name, turn: name.removeprefix("call_"),
    "its own": lambda name, turn: f"own-{turn}",
}


def written(request, play):
    asked = play.renderer.decode(request.prompt_ids).count("20 degrees in Bern")
    return "mild" if asked == 2 else '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'


def asked(context, messages):
    """Return the policy's answer to plain HTTP."""
    with httpx.Client(trust_env=False, timeout=60.0) as client:
        reply = client.post(
            f"{context.base_url}/chat/completions",
            json={"model": context.model, "messages": messages, "tools": [WEATHER]},
            headers={"authorization": f"Bearer {context.api_key}"},
        )
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


@pytest.mark.parametrize("how", RENAMED)
def test_an_agent_that_rewrites_ids_makes_one_row(play, how):
    given = []

    def agent(context):
        messages = [{"role": "user", "content": "Is it mild in Bern?"}]
        for turn in range(3):
            answer = asked(context, messages)
            if not answer.get("tool_calls"):
                return float(answer["content"] == "mild")
            (call,) = answer["tool_calls"]
            given.append(call["id"])
            name = RENAMED[how](call["id"], turn)
            messages += [
                {**answer, "tool_calls": [{**call, "id": name}]},
                {"role": "tool", "tool_call_id": name, "content": "20 degrees in Bern"},
            ]
        return 0.0

    play.engine = FakeEngine(lambda request, index: written(request, play))
    (row,) = play(agent, context=play.context(max_length=100_000, max_new_tokens=500))

    assert row.total_reward == 1.0
    assert len(row.turns) == 3
    assert row.metrics["graph/forks"] == 0.0
    assert all(name.startswith("call_") for name in given)
