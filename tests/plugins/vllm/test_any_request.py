"""Whatever a client of an episode asks, vLLM serves it or the client is told what is wrong; the run goes on."""

from __future__ import annotations

import random
import sys

import httpx
import pytest
from tests.deadlines import HANG_S
from tests.plugins.endpoint.any_requests import any_request

from rlhf_core.contracts import RolloutContext, SamplingParams, Task, Uid
from rlhf_core.rng import seed_of
from rlhf_data import TokenizerRenderer
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.executor import Endpoint

pytestmark = [pytest.mark.scale, pytest.mark.slow]

MODULE = "agent_that_asks_anything"
NUM_REQUESTS = 250


@pytest.fixture
def context(shared_engine, folder):
    from transformers import AutoTokenizer

    return RolloutContext(
        engine=shared_engine,
        renderer=TokenizerRenderer(AutoTokenizer.from_pretrained(folder)),
        sampling=SamplingParams(max_new_tokens=8),
        max_length=1000,
        seed=lambda sample, turn: seed_of(7, "sample", 0, 3, sample, turn),
    )


@pytest.fixture
def play(run, context, monkeypatch):
    """Play an episode of an agent, which is given a function that sends a body to a route."""

    def episode(agent):
        def with_a_client(given):
            with httpx.Client(
                base_url=given.root_url,
                headers={"authorization": f"Bearer {given.api_key}"},
                trust_env=False,
                timeout=HANG_S,
            ) as client:
                agent(given.model, lambda route, body: client.post(route, json=body))
            return 1.0

        module = type(sys)(MODULE)
        module.agent = with_a_client
        monkeypatch.setitem(sys.modules, MODULE, module)
        options = {"overrides": "refuse", "max_requests": 1000, "max_tokens": None}
        endpoint = Endpoint(EndpointConfig(agent=f"{MODULE}:agent", **options))
        task = Task(uid=Uid(0, 3), prompt_ids=(5, 6), row={})
        return run(endpoint.run(task, [0], context))

    return episode


@pytest.mark.parametrize("seed", [38, 39])
def test_whatever_a_client_asks_vllm_is_never_to_blame(play, seed):
    answers = []

    def agent(model, post):
        draw = random.Random(seed)
        for _ in range(NUM_REQUESTS):
            route, body = any_request(draw, model)
            reply = post(route, body)
            answers.append((reply.status_code, route, body, reply.text[:300]))
        hello = {"model": model, "messages": [{"role": "user", "content": "1+1="}]}
        assert post("/v1/chat/completions", hello).status_code == 200

    assert play(agent)

    assert sum(answer[0] == 200 for answer in answers) > NUM_REQUESTS // 10
    assert [answer for answer in answers if answer[0] >= 500] == []
