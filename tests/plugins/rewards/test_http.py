"""The reward ``http`` against servers that answer, refuse, break, hang and die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlhf_core import RewardError
from rlhf_core.testing.conformance import run_checks, subject
from rlhf_plugin_rewards.config import HttpConfig
from rlhf_plugin_rewards.remote.reward import pause_before
from rlhf_plugin_rewards.remote.servers import Servers

FAST = {"backoff_s": 0.01, "max_backoff_s": 0.05, "deadline_s": 10.0, "breaker_pause_s": 0.2}


@dataclass
class FakeServer:
    """A server whose answer a function decides: ``answer(message) -> (status, body)``."""

    answer: Callable[[dict], tuple[int, object]]
    messages: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    reply_headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    stop: Callable[[], None] = lambda: None
    """Stop listening."""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        message = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.messages.append(message)
        self.headers.append(dict(handler.headers))
        status, body = self.answer(message)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in self.reply_headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        with contextlib.suppress(OSError):  # nobody waits for an answer that took too long
            handler.end_headers()
            handler.wfile.write(data)


def length_of(message):
    return 200, {"rewards": [float(len(query)) for query in message["query"]]}


@pytest.fixture
def serve():
    """``serve(answer)``: a server in a thread."""
    running = []

    def start(answer=length_of):
        fake = FakeServer(answer)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                fake.handle(self)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def stop():
            server.shutdown()
            thread.join(5)
            server.server_close()

        running.append(stop)
        fake.stop = stop
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/get_reward"
        return fake

    yield start
    for stop in running:
        stop()


@pytest.fixture
def dead_url():
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/get_reward"


@pytest.fixture
def ask(results, request_for):
    """``ask(urls, responses, **options)``: what the reward returns for some responses."""

    def run(urls, responses, **options):
        requests = [request_for(text, index, answer="a") for index, text in enumerate(responses)]
        return results("http", requests, urls=urls, **{**FAST, **options})

    return run


def rewards(results):
    return [result.reward for result in results]


def test_the_protocol_is_openrlhf_s(serve, ask):
    server = serve(
        lambda message: (200, {"rewards": [1.5], "scores": [0.5], "extra_logs": {"good": [0.25]}})
    )

    (result,) = ask([server.url], ["response"], label_key="answer")

    assert server.messages == [{"query": ["presponse"], "prompts": ["p"], "labels": ["a"]}]
    assert (result.reward, result.metrics) == (1.5, {"score": 0.5, "good": 0.25})


def test_labels_are_null_and_token_ids_absent_unless_asked_for(serve, ask):
    server = serve()

    ask([server.url], ["r"])
    ask([server.url], ["r"], send_token_ids=True)

    assert [message["labels"] for message in server.messages] == [[None], [None]]
    assert [message.get("token_ids") for message in server.messages] == [None, [[1, 2, 3]]]


def test_samples_are_sent_in_batches_and_come_back_in_order(serve, ask):
    server = serve()

    found = ask([server.url], ["x" * n for n in range(10)], batch_size=4)

    assert rewards(found) == [1.0 + n for n in range(10)]
    assert sorted(len(message["query"]) for message in server.messages) == [2, 4, 4]


def test_nothing_to_score_asks_nobody(serve, ask):
    server = serve()

    assert ask([server.url], []) == []
    assert server.messages == []


@pytest.mark.parametrize("choose", ["round_robin", "least_loaded"])
def test_several_servers_share_the_work(serve, ask, choose):
    servers = [serve(), serve()]

    found = ask([one.url for one in servers], ["r"] * 8, batch_size=1, choose=choose)

    assert rewards(found) == [2.0] * 8
    assert all(len(one.messages) >= 2 for one in servers)


def test_the_token_comes_from_the_environment_and_is_sent_as_a_header(serve, ask, monkeypatch):
    server = serve()
    ask([server.url], ["r"])

    monkeypatch.setenv("MY_TOKEN", "secret")
    ask([server.url], ["r"], token_env="MY_TOKEN")

    assert [headers.get("Authorization") for headers in server.headers] == [None, "Bearer secret"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((200, "<html>"), "answered no JSON"),
        ((200, [1.0]), "answered a list; expected an object with 'rewards'"),
        ((200, {"reward": [1.0]}), "answered an object with 'reward'; expected 'rewards'"),
        ((200, {"rewards": [1.0]}), "answered 1 rewards for 2 samples"),
        ((200, {"rewards": None}), "answered a NoneType as rewards; expected a list of 2 numbers"),
        ((200, {"rewards": [1, 2], "extra_logs": {"a": [1]}}), "answered 1 extra_logs 'a' for 2"),
        ((401, {"error": "who?"}), 'status 401 (set the variable that token_env names'),
        ((404, "nothing here"), "status 404: nothing here"),
        ((307, ""), "status 307 (it has moved to"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_used_is_an_error_and_is_not_asked_for_again(
    serve, ask, answer, text
):
    server = serve(lambda message: answer)

    found = ask([server.url], ["r", "s"])

    assert all(isinstance(one, RewardError) for one in found)
    assert text in str(found[0])
    assert server.url in str(found[0])
    assert len(server.messages) == 1


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "null", '"1.0"', "[1.0]"])
def test_a_sample_without_a_finite_reward_is_an_error_of_its_own(serve, ask, bad):
    server = serve(lambda message: (200, f'{{"rewards": [1.0, {bad}, 2.0]}}'))

    first, second, third = ask([server.url], ["r", "s", "t"])

    assert (first.reward, third.reward) == (1.0, 2.0)
    assert isinstance(second, RewardError)
    assert "expected a finite number" in str(second)


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_sample_that_the_server_refuses_costs_nobody_else_the_reward(serve, ask, status):
    def answer(message):
        bad = any("bad" in query for query in message["query"])
        return (status, "one is bad") if bad else length_of(message)

    server = serve(answer)

    found = ask([server.url], ["a", "b", "bad", "d", "e", "f", "g", "h"])

    assert isinstance(found[2], RewardError)
    assert f"{server.url}: status {status}: one is bad" in str(found[2])
    assert rewards(found[:2] + found[3:]) == [2.0] * 7


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_that_is_not_able_is_asked_again(serve, ask, status):
    answers = iter([(status, "later"), (status, "later")])
    server = serve(lambda message: next(answers, None) or length_of(message))

    found = ask([server.url], ["r", "s"])

    assert rewards(found) == [2.0, 2.0]
    assert len(server.messages) == 3


def test_a_server_that_is_never_able_is_given_up_after_max_tries(serve, ask):
    server = serve(lambda message: (429, "too much"))

    (found,) = ask([server.url], ["r"], max_tries=3)

    assert str(found) == f"{server.url}: status 429: too much (asked 3 times)"
    assert len(server.messages) == 3


def test_retry_after_is_kept_and_one_beyond_the_deadline_ends_it(serve, ask):
    server = serve(lambda message: (503, "later"))
    server.reply_headers["Retry-After"] = "3600"

    (found,) = ask([server.url], ["r"])

    assert "status 503: later (deadline_s = 10 allows no further try)" in str(found)
    assert len(server.messages) == 1


def test_pauses_grow_differ_and_repeat_with_the_seed():
    def pauses(uid, seed):
        config = HttpConfig(urls=("http://a",), backoff_s=1.0, max_backoff_s=8.0, seed=seed)
        return [pause_before(tries, uid, config) for tries in range(1, 7)]

    first = pauses("0.0.0.0", 0)
    for pause, longest in zip(first, [1, 2, 4, 8, 8, 8], strict=True):
        assert 0.5 * longest <= pause <= 1.5 * longest
    assert pauses("0.0.0.0", 0) == first
    assert pauses("0.1.0.0", 0) != first
    assert pauses("0.0.0.0", 1) != first


def test_another_server_takes_over(serve, ask, dead_url):
    server = serve()

    found = ask([dead_url, server.url], ["r"] * 12, batch_size=1, choose="round_robin")

    assert rewards(found) == [2.0] * 12


def test_a_slow_server_is_left_for_another(serve, ask):
    release = threading.Event()
    slow = serve(lambda message: (release.wait(20), (200, "too late"))[1])
    quick = serve()

    try:
        found = ask([slow.url, quick.url], ["r"], choose="round_robin", request_timeout_s=0.3)
    finally:
        release.set()

    assert rewards(found) == [2.0]


def test_servers_that_cannot_be_reached_are_found_out_at_the_start(reward, dead_url):
    with pytest.raises(RewardError) as caught:
        reward("http", urls=[dead_url, "http://no-such-host.invalid/"], deadline_s=0.5)

    assert "no reward server can be reached (tried for deadline_s = 0.5)" in str(caught.value)
    assert f"{dead_url}: Connection refused; http://no-such-host.invalid/: " in str(caught.value)


def test_a_server_that_is_still_starting_is_waited_for(reward):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = probe.getsockname()
    listening = []
    timer = threading.Timer(0.5, lambda: listening.append(socket.create_server(address)))
    timer.start()

    reward("http", urls=[f"http://127.0.0.1:{address[1]}/"], deadline_s=20.0)

    timer.join(5)
    listening[0].close()


def test_a_server_that_goes_is_a_clear_error_within_the_deadline(serve, reward, request_for):
    server = serve()
    options = {"deadline_s": 1.0, "breaker_pause_s": 30.0, "max_tries": 100}
    component = reward("http", urls=[server.url], **{**FAST, **options})
    server.stop()
    started = time.monotonic()

    found = asyncio.run(component.score([request_for("r", 0), request_for("s", 1)]))

    assert time.monotonic() - started < 5.0
    for error in found:
        assert "no reward server answers (deadline_s = 1 allows no further try)" in str(error)
        assert server.url in str(error)
        assert "3 in a row, left alone for another" in str(error)


def test_the_breaker_opens_and_closes_again(serve, reward, request_for, dead_url):
    """A server that comes back is used again after its pause; until then it is not asked at all."""
    broken = [True]
    server = serve(lambda message: (503, "broken") if broken[0] else length_of(message))
    options = {"max_tries": 2, "breaker_failures": 2, "deadline_s": 0.4, "breaker_pause_s": 0.6}
    component = reward("http", urls=[server.url], **{**FAST, **options})

    async def twice():
        first = await component.score([request_for()])
        asked = len(server.messages)
        second = await component.score([request_for()])
        still = len(server.messages)
        broken[0] = False
        await asyncio.sleep(0.6)
        return first, asked, second, still, await component.score([request_for()])

    first, asked, second, still, third = asyncio.run(twice())

    assert (asked, "503" in str(first[0])) == (2, True)
    assert (still, "no reward server answers" in str(second[0])) == (2, True)
    assert rewards(third) == [2.0]


def test_after_its_pause_a_server_gets_one_request_until_that_is_answered():
    servers = Servers(["http://a"], least_loaded=True, failures=1, pause_s=10.0)
    server = servers.choose(0.0)
    servers.failed(server, "refused", 0.0)
    server.in_flight -= 1

    assert servers.choose(9.9) is None
    assert servers.wait_s(9.0) == 1.0
    assert servers.choose(10.1) is server
    assert servers.choose(10.1) is None
    servers.answered(server)
    assert servers.choose(10.1) is server


def test_a_server_that_hangs_up_is_asked_again(ask):
    """A connection that ends without an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = []

        def hang_up():
            while len(asked) < 2:
                connection, _address = listener.accept()
                with connection:
                    if connection.recv(65536):  # not the look whether somebody is there
                        asked.append(True)

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        (found,) = ask([url], ["r"], max_tries=2)
        thread.join(5)

    assert url in str(found)
    assert "(asked 2 times)" in str(found)


def test_a_long_answer_is_shown_in_its_first_characters_alone(serve, ask):
    server = serve(lambda message: (404, "<p>\n" + "x" * 10_000))

    (found,) = ask([server.url], ["r"])

    assert len(str(found)) < 400
    assert "status 404: <p> xxx" in str(found)


@pytest.mark.parametrize(
    ("urls", "text"),
    [
        (["localhost:5000"], "expected http://HOST:PORT/PATH"),
        (["ftp://host/x"], "expected http://HOST:PORT/PATH"),
        (["http://me:secret@host/x"], "has a name or password in it"),
        (["http://host/x", "http://host/x"], "the same address twice"),
        ([], "at least 1 item"),
    ],
)
def test_addresses_are_checked_at_the_start(plugins, urls, text):
    with pytest.raises(ValueError, match=text) as caught:
        plugins.get("rlhf_rewards", "http").validate({"urls": urls})

    assert "secret@" not in caught.value.errors()[0]["msg"]


def test_the_contract_holds(serve, plugins):
    server = serve()
    tried = subject(plugins.get("rlhf_rewards", "http"), urls=[server.url])

    outcomes = run_checks("rlhf_rewards", tried)

    assert len(outcomes) == 4
    assert [outcome for outcome in outcomes if outcome.failed] == []


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("isolate", [True, False])
def test_a_run_gets_scores_and_reasons_whether_isolated_or_not(
    serve, panel_scores, request_for, isolate
):
    def answer(message):
        numbers = [float("nan") if "bad" in query else 1.0 for query in message["query"]]
        return 200, {"rewards": numbers}

    server = serve(answer)
    options = {"urls": [server.url], **FAST}
    requests = [request_for("good", 0), request_for("bad", 1)]

    scores = panel_scores(
        options, requests, component="http", on_error="value", error_value=-1.0, isolate=isolate
    )
    with pytest.raises(
        RewardError, match=r"could not score 0\.1\.0\.0.*the server's reward is nan"
    ):
        panel_scores(options, requests, component="http", isolate=isolate)

    assert [one.reward for one in scores] == [1.0, -1.0]
