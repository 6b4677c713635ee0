import asyncio
import contextlib
import json
import time
from dataclasses import replace

import httpx
import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Stop, Uid
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.executor import Endpoint
from rlhf_plugin_endpoint.traces import read_traces
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine


def ask(context, messages, **fields):
    """Ask the policy by plain HTTP, and return the reply."""
    with httpx.Client(trust_env=False, timeout=60.0) as client:
        return client.post(
            f"{context.base_url}/chat/completions",
            json={"model": context.model, "messages": messages, **fields},
            headers={"authorization": f"Bearer {context.api_key}"},
        )


def said(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


def talk(context, turns=2):
    messages = [dict(message) for message in context.messages]
    for turn in range(turns):
        messages.append(said(ask(context, messages)))
        messages.append({"role": "user", "content": f"go on {turn}"})
    return messages


def text_of(play, trajectory):
    return play.renderer.decode(trajectory.token_ids, skip_special_tokens=False)


def test_two_turns_are_one_row_with_the_agents_reward(play):
    (row,) = play(lambda context: (talk(context), 0.75)[1])

    first, second = (play.renderer.decode(one.prompt_ids) for one in play.engine.requests)
    assert first == "[user]question|[assistant]"
    assert second.startswith(first)
    assert row.total_reward == 0.75
    assert row.metrics["turns"] == 2.0
    assert row.metrics["finished"] == 1.0
    assert row.action_mask.sum() == len(row.rollout_logprobs)
    assert [turn.stop for turn in row.turns] == [Stop.EOS, Stop.EOS]
    # The answers' tokens are actions, and nothing else: the engine's log-probs are those of each answer in turn.
    lengths = [turn.end - turn.start for turn in row.turns]
    expected = np.concatenate([-np.arange(1, n + 1) / 1024 for n in lengths])
    np.testing.assert_array_equal(row.rollout_logprobs, expected.astype(np.float32))


def test_a_coroutine_plays_too(play):
    async def agent(context):
        return (await asyncio.to_thread(talk, context), 1.0)[1]

    (row,) = play(agent)

    assert row.total_reward == 1.0


def test_the_agent_knows_its_task(play):
    seen = []

    def agent(context):
        seen.append(context)
        talk(context, turns=1)
        return 0

    play(agent, samples=(0, 1))

    assert {each.uid for each in seen} == {"0.3.0.0", "0.3.1.0"}
    assert [each.row for each in seen] == [{"answer": "42"}] * 2
    assert [each.prompt for each in seen] == ["question"] * 2
    # All episodes of a group face the same problem.
    assert len({each.seed for each in seen}) == 1
    assert len({each.api_key for each in seen}) == 2


def test_rewards_by_name_add_up_and_metrics_are_kept(play):
    def agent(context):
        talk(context, turns=1)
        return {"rewards": {"right": 1, "short": 0.25}, "metrics": {"steps": 3}}

    (row,) = play(agent)

    assert row.rewards == {"right": 1.0, "short": 0.25}
    assert row.total_reward == 1.25
    assert row.metrics["agent/steps"] == 3.0


def test_with_rewards_that_judge_the_agent_returns_nothing(play):
    (row,) = play(lambda context: talk(context) and None, reward_from="rewards")

    assert row.reward is None


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned no reward"),
        ("good", "its reward = 'good'; expected one finite number"),
        (float("nan"), "expected one finite number"),
        (1e300, "expected one finite number"),
        ({"score": 1}, "returned 'score'; expected reward, rewards and metrics"),
        ({"rewards": [1]}, r"returned rewards = '\[1\]'; expected numbers by name"),
    ],
)
def test_an_outcome_that_is_none_fails_with_the_episodes_name(play, returned, message):
    def agent(context):
        talk(context, turns=1)
        return returned

    with pytest.raises(
        RolloutError,
        match=rf"0\.3\.0\.0: the agent agent_of_a_test:agent .*{message}",
        check=has_code("agent/failed"),
    ):
        play(agent)


def test_an_agent_that_raises_fails_the_episode_and_is_named(play):
    def agent(context):
        raise ValueError("no such tool")

    with pytest.raises(
        RolloutError, match="raised ValueError: no such tool", check=has_code("agent/failed")
    ):
        play(agent)


def test_an_agent_that_never_asks_is_told_so(play):
    with pytest.raises(
        RolloutError, match="never asked the policy", check=has_code("agent/failed")
    ):
        play(lambda context: 1.0)


def fails_in_sample_1(context):
    talk(context, turns=1)
    if context.uid == "0.3.1.0":
        raise ValueError("no such tool")
    return 1.0


def test_a_failed_episode_may_be_left_out_of_its_group(play, caplog):
    dropped = {}
    context = replace(play.context(), drop=dropped.__setitem__)

    rows = play(fails_in_sample_1, samples=(0, 1, 2), on_error="drop", context=context)

    assert [str(row.uid) for row in rows] == ["0.3.0.0", "0.3.2.0"]
    assert dropped == {Uid(0, 3, 1): "agent_error"}
    assert "0.3.1.0: the agent agent_of_a_test:agent raised ValueError: no such tool" in caplog.text


def test_a_failed_episode_may_train_with_a_value(play):
    rows = play(fails_in_sample_1, samples=(0, 1, 2), on_error="value", error_reward=-1.0)

    assert [row.total_reward for row in rows] == [1.0, -1.0, 1.0]
    assert [row.metrics["end/environment_error"] for row in rows] == [0.0, 1.0, 0.0]


def test_a_failed_episode_without_a_request_is_left_out_in_any_case(play):
    dropped = {}
    context = replace(play.context(), drop=dropped.__setitem__)

    assert play(lambda context: 1.0, on_error="value", context=context) == []
    assert list(dropped) == [Uid(0, 3, 0)]


def test_requests_beyond_the_limit_end_the_episode(play):
    def agent(context):
        talk(context, turns=9)
        return 1.0

    def careful(context):
        reply = ask(context, [{"role": "user", "content": "a"}])
        reply = ask(context, [{"role": "user", "content": "b"}])
        assert reply.status_code == 403
        assert "--rollout.endpoint.max_requests" in reply.json()["error"]["message"]
        return 1.0

    (row,) = play(agent, max_requests=3)
    (other,) = play(careful, max_requests=1)

    assert row.metrics["end/turns"] == 1.0
    assert row.metrics["turns"] == 3.0
    assert row.total_reward == 0.0
    assert (other.metrics["finished"], other.total_reward) == (1.0, 1.0)


def test_a_conversation_without_room_is_refused_and_ends(play):
    (row,) = play(lambda context: talk(context, turns=50), context=play.context(max_length=120))

    assert row.metrics["end/context"] == 1.0
    assert len(row.token_ids) <= 120


def test_an_agent_that_a_limit_kept_from_its_outcome_is_told_of_once(play, caplog):
    def agent(context):
        talk(context, turns=50)
        return 1.0

    rows = play(agent, samples=(0, 1), context=play.context(max_length=120))

    assert [row.total_reward for row in rows] == [0.0, 0.0]
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "ended by context before its agent had an outcome" in warning
    assert "context_length_exceeded" in warning
    assert "rollout/end/context" in warning


def test_an_episode_that_rewards_judge_needs_no_outcome(play, caplog):
    play(
        lambda context: talk(context, turns=50),
        reward_from="rewards",
        context=play.context(max_length=120),
    )

    assert "outcome" not in caplog.text


def test_an_agent_out_of_time_keeps_what_it_did(play):
    def agent(context):
        talk(context, turns=1)
        time.sleep(3600)

    async def other(context):
        await asyncio.to_thread(talk, context, 1)
        await asyncio.sleep(3600)

    for each in (agent, other):
        # On a busy machine the first turn may take longer than the shorter time.
        for seconds in (1.0, HANG_S / 10):
            with contextlib.suppress(RolloutError):
                (row,) = play(each, episode_timeout_s=seconds)
                break
        assert row.metrics["end/timeout"] == 1.0
        assert row.metrics["turns"] == 1.0


def test_the_engines_error_ends_the_run(play):
    class Broken(FakeEngine):
        async def generate(self, request):
            raise RolloutError("the engine is gone")

    play.engine = Broken()

    with pytest.raises(RolloutError, match="the engine is gone", check=has_code("rollout/failed")):
        play(lambda context: talk(context) and 1.0)


def test_after_the_episode_its_address_answers_no_more(play):
    kept = []

    def agent(context):
        kept.append(context)
        talk(context, turns=1)
        return 1.0

    play(agent)
    with pytest.raises(httpx.TransportError):
        ask(kept[0], [{"role": "user", "content": "late"}])


def test_one_episodes_key_opens_no_other(play):
    contexts, replies = [], []

    def agent(context):
        contexts.append(context)
        while len(contexts) < 2:
            time.sleep(0.01)
        other = next(each for each in contexts if each is not context)
        reply = httpx.post(
            f"{other.base_url}/chat/completions",
            json={"model": "policy", "messages": [{"role": "user", "content": "hi"}]},
            headers={"authorization": f"Bearer {context.api_key}"},
            timeout=HANG_S,
        )
        replies.append(reply.status_code)
        talk(context, turns=1)
        while len(replies) < 2:  # an episode that is over is not found
            time.sleep(0.01)
        return 1.0

    play(agent, samples=(0, 1))

    assert replies == [401, 401]


def test_a_stop_string_within_min_new_tokens_cuts_no_answer(play):
    """One character is one token here."""
    heard = []
    play.engine = FakeEngine(lambda request, index: "abcabcabc")

    def agent(context):
        heard.append(said(ask(context, context.messages, stop=["c"]))["content"])
        heard.append(said(ask(context, context.messages, stop=["ca", "b"]))["content"])
        return 1.0

    play(agent, context=play.context(min_new_tokens=4))

    assert heard == ["abcab", "abca"]


@pytest.mark.parametrize("count", [1, 2])
def test_parallel_requests_write_no_more_than_the_episode_may(play, count):
    """Each may write 64 tokens, and writes all of them that it gets."""
    statuses = []
    play.engine = FakeEngine(lambda request, index: "x" * 99, delay_s=0.05)

    def one(context, topic):
        reply = ask(context, [{"role": "user", "content": f"topic {topic}"}], n=count)
        statuses.append(reply.status_code)

    async def agent(context):
        await asyncio.gather(*(asyncio.to_thread(one, context, topic) for topic in range(5)))
        return 1.0

    rows = play(agent, max_tokens=150)

    assert sum(int(row.action_mask.sum()) for row in rows) == 150
    assert sorted(statuses) == ([200] * 3 + [403] * 2 if count == 1 else [200] * 2 + [403] * 3)


def test_a_request_waits_for_tokens_that_another_one_does_not_need(play):
    play.engine = FakeEngine(lambda request, index: "x" * 10, delay_s=0.05)

    def one(context, topic):
        said(ask(context, [{"role": "user", "content": f"topic {topic}"}]))

    async def agent(context):
        await asyncio.gather(*(asyncio.to_thread(one, context, topic) for topic in range(4)))
        return 1.0

    rows = play(agent, max_tokens=80)

    assert [request.sampling.max_new_tokens for request in play.engine.requests] == [64, 64, 58, 47]
    assert sum(int(row.action_mask.sum()) for row in rows) == 44  # with the end of each


def test_more_answers_at_once_than_tokens_are_left_are_refused(play):
    play.engine = FakeEngine(lambda request, index: "x" * 99)

    def agent(context):
        assert ask(context, context.messages).status_code == 200
        refused = ask(context, context.messages, n=3)
        assert refused.json()["error"]["code"] == "episode_over"
        assert "2 of its 66 tokens left" in refused.json()["error"]["message"]
        assert ask(context, context.messages, n=2).status_code == 200
        return 1.0

    rows = play(agent, max_tokens=66)

    assert sum(int(row.action_mask.sum()) for row in rows) == 66


def test_the_same_agent_gives_the_same_episodes_to_the_bit(play):
    """Also if its parallel requests arrive in another order."""

    def agent(order):
        async def run(context):
            async def one(index):
                await asyncio.sleep(0.05 * order[index])
                return await asyncio.to_thread(talk_about, context, index)

            await asyncio.gather(*map(one, range(3)))
            return 1.0

        return run

    def talk_about(context, index):
        messages = [{"role": "user", "content": f"topic {index}"}]
        messages.append(said(ask(context, messages)))
        ask(context, [*messages, {"role": "user", "content": "more"}])

    rows = play(agent([0, 1, 2]), samples=(0, 1))
    again = play(agent([2, 1, 0]), samples=(0, 1))

    assert len(rows) == 6
    for one, other in zip(rows, again, strict=True):
        assert one.uid == other.uid
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.action_mask, other.action_mask)
    assert len({row.token_ids.tobytes() for row in rows}) == 6


def test_a_function_that_cannot_be_loaded_is_named():
    with pytest.raises(
        ConfigError, match=r"package\.module:NAME", check=has_code("agent/malformed-name")
    ):
        Endpoint(EndpointConfig(agent="agent"))
    with pytest.raises(ConfigError, match="no_such_module", check=has_code("agent/not-loadable")):
        Endpoint(EndpointConfig(agent="no_such_module:agent"))
    with pytest.raises(ConfigError, match="float", check=has_code("agent/not-a-function")):
        Endpoint(EndpointConfig(agent="math:pi"))


def test_a_command_has_words_and_a_function_has_none():
    with pytest.raises(ValueError, match="command is empty"):
        EndpointConfig(agent="command")
    with pytest.raises(ValueError, match="leave command out"):
        EndpointConfig(agent="a:b", command=("true",))


def test_a_replys_extra_fields_come_when_asked_for(play):
    replies = []

    def agent(context):
        for fields in ({"return_token_ids": True, "logprobs": True}, {}):
            replies.append(ask(context, [{"role": "user", "content": "hi"}], **fields).json())
        return 1.0

    play(agent, context=play.context(logprobs=False))

    shown, plain = replies
    (choice,) = shown["choices"]
    request = play.engine.requests[0]
    assert tuple(shown["prompt_token_ids"]) == request.prompt_ids
    assert play.renderer.decode(choice["token_ids"]) == choice["message"]["content"]
    logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
    assert logprobs == [-(index + 1) / 1024 for index in range(len(choice["token_ids"]))]
    assert "prompt_token_ids" not in plain
    assert json.dumps(plain)


def test_traces_have_measured_log_probs_also_where_the_run_reads_none(play, tmp_path):
    folder = tmp_path / "traces"

    rows = play(
        lambda context: (talk(context), 1.0)[1],
        samples=(0, 1),
        context=play.context(logprobs=False),
        trace_folder=folder,
    )

    for row in rows:
        (trace,) = read_traces(folder / f"{row.uid}.jsonl")
        assert len(trace.turns) == 2
        last = trace.turns[-1]
        assert (*last.prompt_token_ids, *last.completion_token_ids) == tuple(row.token_ids)
        assert last.per_token_logps[0] == -1 / 1024
