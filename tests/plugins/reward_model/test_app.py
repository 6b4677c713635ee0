"""The web application without a network or a model: which status says what."""

import asyncio
import json
import threading

import httpx2
import pytest
from tests.deadlines import HANG_S

from rlhf_core import RewardError

pytest.importorskip("starlette")

from rlhf_plugin_reward_model.serving.app import make_app
from rlhf_plugin_reward_model.serving.batcher import Batcher
from rlhf_plugin_reward_model.serving.stopping import ServerEnd

TOKEN = {"Authorization": "Bearer secret"}


def lengths(sequences):
    """A sequence's score is its length; 13 tokens are too many."""
    if any(len(one) == 99 for one in sequences):
        raise MemoryError("too large")
    return [RewardError("too long") if len(one) == 13 else float(len(one)) for one in sequences]


def ask(*bodies, headers=TOKEN, score=lengths, then=lambda: None, **options):
    """Status and answer for each body, one request after the other; ``then`` is called when all are answered."""

    async def run():
        batcher = Batcher(score, batch_tokens=100, max_waiting=2)
        settings = {
            "token": "secret",
            "max_body_bytes": 1000,
            "request_timeout_s": HANG_S,
            "stop": ServerEnd(1.0),
            **options,
        }
        app = make_app(batcher, lambda request: [[1] * len(q) for q in request.queries], **settings)
        transport = httpx2.ASGITransport(app=app)
        batcher.start()
        try:
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
                return [
                    (answer.status_code, answer.json())
                    for body in bodies
                    for answer in [await client.post("/get_reward", content=body, headers=headers)]
                ]
        finally:
            then()
            await batcher.close()

    return asyncio.run(run())


def body(*queries, **fields):
    return json.dumps({"query": queries, **fields}).encode()


def test_scores_come_back_in_openrlhf_s_fields():
    answers = ask(body("a", "bcd", prompts=["a", "b"], labels=[None, 1]), body())

    expected = {"rewards": [1.0, 3.0], "scores": [1.0, 3.0], "extra_logs": {}}
    assert answers == [(200, expected), (200, {"rewards": [], "scores": [], "extra_logs": {}})]


def test_a_single_text_is_a_list_of_one():
    assert ask(b'{"query": "abc"}')[0][1]["rewards"] == [3.0]


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}]
)
def test_without_the_token_nothing_is_scored(headers):
    ((status, answer),) = ask(body("a"), headers=headers)

    assert status == 401
    assert "Authorization: Bearer" in answer["error"]


def test_without_a_token_to_ask_for_everybody_may():
    assert ask(body("a"), headers={}, token=None)[0][0] == 200


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b"{", 400, "the body is no JSON"),
        (b"[" * 900, 400, "the body is no JSON"),
        (b"[]", 400, "expected a JSON object"),
        (b"{}", 400, "'query' is missing"),
        (b'{"query": [1]}', 400, "expected a list of texts"),
        (b'{"query": ["a"], "token_ids": [[1.5]]}', 400, "'token_ids' is a list"),
        (b'{"query": ["a"], "token_ids": [[true]]}', 400, "'token_ids' is a list"),
        (b'{"query": ["a"], "token_ids": []}', 400, "0 token_ids for 1 queries"),
        (b'{"query": ["a"], "prompts": []}', 400, "0 prompts for 1 queries"),
        (b'{"query": ["\\ud800"]}', 400, "'query' has half of a surrogate pair"),
        (b'{"query": ["a"], "prompts": ["\\udfff"]}', 400, "'prompts' has half of a surrogate"),
        (b'{"query": ["a"], "\\ud800": 1, "labels": ["\\ud800"]}', 200, None),
        (b'{"query": ["' + b"x" * 1000 + b'"]}', 413, "more than the 1000 bytes"),
        (body("a", "x" * 13), 422, "query 1: too long"),
        (body("x" * 99), 500, "MemoryError: too large"),
    ],
)
def test_a_request_that_cannot_be_scored_is_told_why_and_the_next_is_scored(content, status, text):
    first, second = ask(content, body("ab"))

    assert first[0] == status
    assert text is None or text in first[1]["error"]
    assert second == (200, {"rewards": [2.0], "scores": [2.0], "extra_logs": {}})


def test_a_request_beyond_its_time_is_told_to_come_back():
    told = threading.Event()

    def slow(sequences):
        assert told.wait(HANG_S)
        return lengths(sequences)

    ((status, answer),) = ask(body("a"), score=slow, then=told.set, request_timeout_s=0.05)

    assert status == 503
    assert answer["error"] == "not scored within 0.05 s"
