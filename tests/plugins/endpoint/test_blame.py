"""Blame for what goes wrong: the client, whose request is refused, or the engine, which ends the run."""

import random
from dataclasses import replace

import httpx
import pytest
from tests.plugins.endpoint.any_requests import VOCAB, any_request

from rlhf_core import EnvironmentFailure, RequestError, RolloutError, UnknownTokenError
from rlhf_core.contracts import Uid
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine


class CheckingEngine(FakeEngine):
    """Refuses what every engine refuses."""

    async def generate(self, request):
        request.checked_limit(2000, VOCAB)
        return await super().generate(request)


@pytest.fixture
def post(play):
    """Send a body to a route of the episode's address."""
    play.engine = CheckingEngine()

    def send(context, route, body):
        with httpx.Client(trust_env=False, timeout=60.0) as client:
            return client.post(
                f"{context.root_url}{route}",
                json=body,
                headers={"authorization": f"Bearer {context.api_key}"},
            )

    return send


def hello(context, post):
    body = {"model": context.model, "messages": [{"role": "user", "content": "hello"}]}
    assert post(context, "/v1/chat/completions", body).status_code == 200


BAD_PROMPTS = pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([5, VOCAB], f"token id {VOCAB} is outside of the model's vocabulary of {VOCAB}"),
        ("", "the prompt is empty; at least one token is needed"),
    ],
)


@BAD_PROMPTS
def test_a_request_that_no_engine_could_serve_is_the_clients(play, post, prompt, problem):
    replies = []

    def agent(context):
        hello(context, post)
        replies.append(post(context, "/v1/completions", {"model": context.model, "prompt": prompt}))
        hello(context, post)
        return 1.0

    rows = play(agent)

    assert [row.total_reward for row in rows] == [1.0] * len(rows)
    (reply,) = replies
    assert reply.status_code == 400
    assert reply.headers["x-should-retry"] == "false"
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("unservable", "prompt")
    assert problem in error["message"]


@BAD_PROMPTS
def test_an_agent_that_gives_up_for_it_costs_its_episode_alone(play, post, prompt, problem):
    dropped = {}

    def agent(context):
        hello(context, post)
        if context.uid == "0.3.1.0":
            post(
                context, "/v1/completions", {"model": context.model, "prompt": prompt}
            ).raise_for_status()
        return 1.0

    context = replace(play.context(), drop=dropped.__setitem__)

    rows = play(agent, samples=(0, 1, 2), on_error="drop", context=context)

    assert [str(row.uid) for row in rows] == ["0.3.0.0", "0.3.2.0"]
    assert dropped == {Uid(0, 3, 1): "agent_error"}


def test_an_engine_that_fails_ends_the_run_also_where_agents_errors_drop(play, post):
    class Broken(FakeEngine):
        async def generate(self, request):
            raise RolloutError("the engine is gone")

    play.engine = Broken()

    def agent(context):
        body = {"model": context.model, "messages": [{"role": "user", "content": "hello"}]}
        assert post(context, "/v1/chat/completions", body).status_code == 500
        return 1.0

    with pytest.raises(
        RolloutError, match="the engine is gone", check=has_code("rollout/failed")
    ) as ended:
        play(agent, on_error="drop")
    assert not isinstance(ended.value, EnvironmentFailure | RequestError)


def test_the_types_say_who_is_to_blame():
    """The client, its environment or agent, and the engine, which none of the two is."""
    assert issubclass(UnknownTokenError, RequestError)
    assert issubclass(RequestError, RolloutError)
    assert issubclass(EnvironmentFailure, RolloutError)
    assert not issubclass(EnvironmentFailure, RequestError)
    assert not issubclass(RequestError, EnvironmentFailure)


def test_an_agent_that_raises_is_to_blame_and_not_the_engine(play):
    def agent(context):
        raise ValueError("the agent is broken")

    with pytest.raises(
        EnvironmentFailure, match="the agent is broken", check=has_code("agent/failed")
    ):
        play(agent)


@pytest.mark.parametrize("seed", [38, 39, 40])
def test_whatever_a_client_asks_its_answer_is_never_a_failure_of_the_server(play, post, seed):
    statuses = {}

    def agent(context):
        draw = random.Random(seed)
        for _ in range(250):
            route, body = any_request(draw, context.model)
            reply = post(context, route, body)
            statuses.setdefault(reply.status_code, []).append((route, body, reply.text))
        hello(context, post)
        return 1.0

    rows = play(agent, overrides="refuse", max_requests=1000, max_tokens=None)

    assert rows
    assert 200 in statuses
    failed = {status: found[:3] for status, found in statuses.items() if status >= 500}
    assert not failed
