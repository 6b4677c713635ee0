"""``rlhf serve-rm`` from the outside: same scores, who may ask, what is refused, how it ends."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from tests.deadlines import HANG_S
from tests.plugins.reward_model.conftest import CLOSE

from rlhf_core import RewardError

TOKEN = "the-tests-token"

pytestmark = pytest.mark.slow

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


def post(url, message, *, token=TOKEN, body=None):
    """Status and decoded answer."""
    request = urllib.request.Request(
        url,
        data=json.dumps(message).encode() if body is None else body,
        headers={"Content-Type": "application/json"}
        | ({"Authorization": f"Bearer {token}"} if token else {}),
    )
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_scores_are_those_of_transformers_in_whatever_way_they_are_asked_for(
    serve, server, results, reward_model, plain, samples, monkeypatch
):
    monkeypatch.setenv("RLHF_REWARD_TOKEN", TOKEN)
    expected = [plain(reward_model, one.token_ids) for one in samples]

    local = results("reward_model", samples, path=str(reward_model))
    by_text = results("http", samples, urls=[server.url], batch_size=2)
    with serve(str(reward_model), "--port", "0", "--input", "ids") as of_ids:
        by_ids = results("http", samples, urls=[of_ids.url], send_token_ids=True)
        status, refused = post(of_ids.url, {"query": ["a"], "prompts": ["a"]})
        other, mixed = post(of_ids.url, {"query": ["a"], "prompts": ["a"], "token_ids": [[50]]})

    assert [one.reward for one in local] == pytest.approx(expected, **CLOSE)
    assert [one.reward for one in by_text] == pytest.approx(expected, **CLOSE)
    assert [one.reward for one in by_ids] == pytest.approx(expected, **CLOSE)
    assert (status, "has no token_ids" in refused["error"]) == (400, True)
    assert (other, "have different tokenizers" in mixed["error"]) == (422, True)


def test_the_answer_is_openrlhf_s(server):
    status, answer = post(server.url, {"query": ["1+1=2"], "prompts": ["1+1="], "labels": ["2"]})

    assert status == 200
    assert list(answer) == ["rewards", "scores", "extra_logs"]
    assert answer["rewards"] == answer["scores"]


@pytest.mark.parametrize("token", ["wrong", None])
def test_without_the_token_nothing_is_scored(server, token):
    status, answer = post(server.url, {"query": ["a"]}, token=token)

    assert status == 401
    assert "Authorization: Bearer" in answer["error"]


def test_the_reward_says_which_variable_holds_the_token(server, results, samples, monkeypatch):
    monkeypatch.delenv("RLHF_REWARD_TOKEN", raising=False)

    found = results("http", samples, urls=[server.url])

    assert all("status 401 (set the variable that token_env names" in str(one) for one in found)


def test_a_sequence_that_is_too_long_names_its_query(server):
    status, answer = post(server.url, {"query": ["ok", "x" * 2000]})

    assert status == 422
    assert "query 1: a sequence of 2001 tokens" in answer["error"]


def test_a_large_request_is_refused_before_it_is_read(serve, reward_model):
    with serve(str(reward_model), "--port", "0", "--max-body-mib", "1") as server:
        status, answer = post(server.url, {"query": ["x" * 2**20]})

        host, port = server.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
            head = "POST /get_reward HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n"
            connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
            declared = connection.recv(100)

    assert (status, "bytes that are allowed" in answer["error"]) == (413, True)
    assert declared.startswith(b"HTTP/1.1 413")


def test_health_needs_no_token(server):
    assert healthy(server) == {"status": "ok", "waiting": 0}


def healthy(server):
    """The server's word on its health."""
    url = server.url.replace("get_reward", "health")
    with urllib.request.urlopen(url, timeout=HANG_S) as response:
        return json.loads(response.read())


def test_it_listens_on_loopback_and_makes_up_a_token(serve, reward_model):
    with serve(str(reward_model), "--port", "0", token=None) as server:
        token = next(line for line in server.printed if line.startswith("token:")).split()[1]
        refused, _ = post(server.url, {"query": ["a"]})
        status, _ = post(server.url, {"query": ["a"]}, token=token)

    assert server.url.startswith("http://127.0.0.1:")
    assert len(token) >= 32
    assert (refused, status) == (401, 200)


def test_a_token_from_the_environment_is_not_printed(server):
    assert any("the one in RLHF_REWARD_TOKEN" in line for line in server.printed)
    assert TOKEN not in "".join(server.printed)


def test_sigterm_ends_it_after_the_request_in_work(serve, reward_model):
    with serve(str(reward_model), "--port", "0", "--batch-tokens", "1") as server:
        url = urllib.parse.urlsplit(server.url)
        connection = http.client.HTTPConnection(url.netloc, timeout=HANG_S)
        with contextlib.closing(connection):
            connection.request(
                "POST",
                url.path,
                body=json.dumps({"query": ["x" * 500] * 60}),
                headers={"Authorization": f"Bearer {TOKEN}"},
            )
            # The server reads connections in their order: when it answers this one, it has read the first.
            healthy(server)
            server.process.send_signal(signal.SIGTERM)
            response = connection.getresponse()
            answer = json.loads(response.read())
        code = server.process.wait(HANG_S)

    assert code == 0
    assert (response.status, len(answer["rewards"])) == (200, 60)


def command(*words):
    """Exit code and the lines of standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli", "serve-rm", *words],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def test_a_port_in_use_is_one_line_and_exit_code_two(server, reward_model):
    port = server.url.split(":")[2].split("/")[0]

    code, lines = command(str(reward_model), "--port", port)

    assert code == 2
    assert lines == [
        f"error: --port {port}: in use at 127.0.0.1. Choose another, or 0 for any free one."
    ]


OPTIONS = {"backoff_s": 0.01, "max_backoff_s": 0.1, "breaker_pause_s": 2 * HANG_S}


def test_a_server_that_is_killed_is_an_error_within_the_deadline_and_a_second_takes_over(
    serve, server, reward, reward_model, plain, samples, monkeypatch
):
    monkeypatch.setenv("RLHF_REWARD_TOKEN", TOKEN)
    expected = [plain(reward_model, one.token_ids) for one in samples]

    async def both(dying):
        alone = reward("http", urls=[dying.url], deadline_s=HANG_S, **OPTIONS)
        pair = reward("http", urls=[dying.url, server.url], batch_size=1, **OPTIONS)
        before = [await alone.score(samples), await pair.score(samples)]
        dying.process.kill()
        dying.process.wait(HANG_S)
        started = time.monotonic()
        errors = await alone.score(samples)
        assert time.monotonic() - started < HANG_S
        return before, errors, await pair.score(samples)

    with serve(str(reward_model), "--port", "0") as dying:
        before, errors, after = asyncio.run(both(dying))
        url = dying.url

    for scores in (*before, after):
        assert [one.reward for one in scores] == pytest.approx(expected, **CLOSE)
    for error in errors:
        assert isinstance(error, RewardError)
        assert url in str(error)
        assert f"deadline_s = {HANG_S:g}" in str(error)
