"""The client: what it sends, what it repeats, and what it gives up with which error."""

from __future__ import annotations

import asyncio

import pytest
from tests.deadlines import HANG_S

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import SamplingParams, Stop
from rlhf_plugin_inference.evaluate.options import RemoteModel
from rlhf_plugin_inference.evaluate.remote.client import ChatClient, ChatRequest
from rlhf_testing.errors import has_code

pytest.importorskip("httpx2")


def request(name="e", **sampling):
    return ChatRequest(
        name=name,
        messages=[{"role": "user", "content": "hi"}],
        tools=(),
        sampling=SamplingParams(**{"temperature": 0.5, "max_new_tokens": 7} | sampling),
        seed=2**40 + 3,
    )


def answers(server, *requests, **options):
    async def ask():
        values = {"url": server.url, "model": "m", "retries": 2, "retry_wait_s": 0.01} | options
        client = ChatClient(RemoteModel(**values))
        try:
            await client.open()
            return await asyncio.gather(*map(client.answer, requests or [request()]))
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(ask(), HANG_S))


def test_a_request_has_what_the_options_say_and_nothing_usual(server):
    answers(server)
    answers(server, request(top_p=0.9, stop=("x",)))

    plain, further = server.requests
    assert plain == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "max_tokens": 7,
        "seed": 3,
    }
    assert (further["top_p"], further["stop"]) == (0.9, ["x"])


def test_an_answer_has_text_end_and_usage(server):
    server.answer = lambda body: {
        "content": "a",
        "reasoning_content": "b",
        "finish_reason": "length",
    }

    (answer,) = answers(server)

    assert (answer.text, answer.reasoning, answer.stop) == ("a", "b", Stop.LENGTH)
    assert (answer.tokens_in, answer.tokens_out) == (5, 2)


@pytest.mark.parametrize("fault", [429, 500, 503, "garbage", "drop", {"choices": []}])
def test_what_may_pass_is_repeated(server, fault):
    server.faults = [fault, fault]

    (answer,) = answers(server)

    assert answer.text == "11"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (429, "status 429"),
        (500, "status 500"),
        ("garbage", r"expected an object with choices\[0\].message; got <html>"),
        ("drop", "Error"),
    ],
)
def test_what_does_not_pass_ends_in_an_error_with_the_last_reason(server, fault, said):
    server.faults = [fault] * 3

    with pytest.raises(
        RolloutError,
        match=rf"e: .* gave no answer in 3 attempts; the last: .*{said}",
        check=has_code("remote/no-answer"),
    ):
        answers(server)


def test_a_server_that_hangs_is_given_up_in_time(server):
    server.faults = ["slow"]

    with pytest.raises(
        RolloutError, match=r"nothing came within 0\.2 s", check=has_code("remote/no-answer")
    ):
        answers(server, retries=0, timeout_s=0.2)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refused_request_is_not_repeated(server, status):
    server.faults = [status] * 2

    with pytest.raises(RolloutError, match=f"e: .* {status}", check=has_code("remote/refused")):
        answers(server)
    assert len(server.requests) == 1


def test_the_key_comes_from_the_variable_and_a_refused_one_names_it(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    answers(server, key_variable="MY_KEY")
    assert server.headers[-1]["authorization"] == "Bearer secret"
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    answers(server)
    assert "authorization" not in server.headers[-1]

    server.faults = [401]
    with pytest.raises(ConfigError, match="MY_KEY", check=has_code("remote/key")) as error:
        answers(server, key_variable="MY_KEY")
    assert "secret" not in str(error.value)
    server.model_status = 403
    with pytest.raises(ConfigError, match=r"403\)", check=has_code("remote/key")):
        answers(server)


def test_no_more_requests_are_in_flight_than_allowed(server):
    server.pause_s = 0.05

    answers(server, *(request(str(n)) for n in range(9)), concurrency=3)

    assert 1 <= server.most_in_flight <= 3


def test_a_model_that_the_server_does_not_have_is_refused_with_those_it_has(server):
    with pytest.raises(
        ConfigError, match=r"--remote\.model other.*m", check=has_code("remote/unknown-model")
    ):
        answers(server, model="other")


def test_a_server_without_a_list_of_models_is_fine(server):
    server.model_status = 404

    (answer,) = answers(server, model="other")

    assert answer.text == "11"


def test_a_url_where_nothing_listens_is_refused(server):
    with pytest.raises(ConfigError, check=has_code("remote/unreachable")):
        answers(server, url="http://127.0.0.1:9/v1")
