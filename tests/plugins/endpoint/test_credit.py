"""Rewards of single requests and of the agents that ask."""

import httpx
import pytest

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code


def ask(context, content, name="", **fields):
    """Ask the policy, and return the reply."""
    with httpx.Client(trust_env=False, timeout=60.0) as client:
        reply = client.post(
            f"{context.base_url}/chat/completions",
            json={
                "model": context.model,
                "messages": [{"role": "user", "content": content}],
                **fields,
            },
            headers={"authorization": f"Bearer {context.api_key}", "x-rlhf-agent": name},
        )
    reply.raise_for_status()
    return reply.json()


def turn_rewards(rows):
    return {tuple(turn.reward for turn in row.turns) for row in rows}


def test_a_request_earns_its_own_reward(play):
    def agent(context):
        good, bad = ask(context, "one"), ask(context, "two")
        return {"request_rewards": {good["id"]: 1.0, bad["id"]: -0.5}}

    rows = play(agent)

    assert sorted(row.turns[0].reward for row in rows) == [-0.5, 1.0]
    # Each row has the episode's total, whatever stands in the others.
    assert {row.total_reward for row in rows} == {0.5}


def test_each_answer_of_a_reply_has_a_reward(play):
    def agent(context):
        reply = ask(context, "one", n=3)
        return {"request_rewards": {reply["id"]: [0.25, 0.5, 1.0]}, "reward": 2.0}

    rows = play(agent)

    assert sorted(row.turns[0].reward for row in rows) == [0.25, 0.5, 1.0]
    assert {row.total_reward for row in rows} == {3.75}


def test_an_agents_reward_stands_on_its_last_answer(play):
    def agent(context):
        ask(context, "write", "writer")
        ask(context, "judge", "critic")
        return {"agent_rewards": {"critic": 1.0, "writer": 0.25}}

    rows = play(agent)

    by_text = {play.renderer.decode(row.token_ids[: row.turns[0].start]): row for row in rows}
    assert by_text["[user]judge|[assistant]"].turns[0].reward == 1.0
    assert by_text["[user]write|[assistant]"].turns[0].reward == 0.25


def test_a_roles_reward_stands_on_the_last_answer_of_each_of_its_agents(play):
    def agent(context):
        ask(context, "write", "writer")
        ask(context, "judge", "critic/1")
        ask(context, "judge again", "critic/2")
        return {"agent_rewards": {"critic": 0.5, "critic/2": 0.25, "writer": 1.0}}

    rows = play(agent)

    earned = {
        play.renderer.decode(row.token_ids[: row.turns[0].start]): row.turns[0].reward
        for row in rows
    }
    assert earned == {
        "[user]write|[assistant]": 1.0,
        "[user]judge|[assistant]": 0.5,
        "[user]judge again|[assistant]": 0.75,
    }
    assert {row.total_reward for row in rows} == {2.25}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            {"request_rewards": {"chatcmpl-1": 1}},
            "'chatcmpl-1', which is no reply of this episode",
        ),
        ({"request_rewards": [1]}, "expected numbers by the ids of replies"),
        ({"agent_rewards": {"critic": 1}}, "'critic', which never got an answer; .* are 'writer'"),
    ],
)
def test_a_reward_for_nobody_is_an_error_of_the_agent(play, returned, message):
    def agent(context):
        ask(context, "write", "writer")
        return returned

    with pytest.raises(RolloutError, match=message, check=has_code("agent/failed")):
        play(agent)


def test_a_reply_with_another_number_of_answers_is_named(play):
    def agent(context):
        return {"reward": 1.0, "request_rewards": {ask(context, "one", n=2)["id"]: 1.0}}

    with pytest.raises(
        RolloutError,
        match=r"1 request_rewards for chatcmpl-\w+.* 2 ",
        check=has_code("agent/failed"),
    ):
        play(agent)


def test_an_agent_whose_requests_were_all_refused_is_told_which_and_why(play):
    def agent(context):
        for fields in ({"top_logprobs": 3}, {"temperature": 0.2}):
            try:
                ask(context, "one", **fields)
            except httpx.HTTPStatusError:
                continue
        return 1.0

    with pytest.raises(RolloutError) as caught:
        play(agent)

    message = str(caught.value)
    assert "never got an answer" in message
    assert "2 requests were refused, the last one with /v1/chat/completions, 400" in message
    assert "temperature = 0.2 (the run has 1)" in message


def test_an_agent_that_gives_up_says_what_was_refused(play):
    def agent(context):
        ask(context, "one")
        try:
            ask(context, "one", top_logprobs=3)
        except httpx.HTTPStatusError:
            raise ValueError("no luck") from None

    with pytest.raises(
        RolloutError,
        match=r"raised ValueError: no luck; one request was refused",
        check=has_code("agent/failed"),
    ):
        play(agent)
