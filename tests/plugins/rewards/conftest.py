from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.deadlines import HANG_S

from rlhf_config.resolved import RewardOptions, Selection
from rlhf_core.contracts import RewardRequest, Turn
from rlhf_core.plugins import load
from rlhf_guard.rewards.panel import RewardPanel

FAST = {"backoff_s": 0.01, "max_backoff_s": 0.05, "deadline_s": HANG_S, "breaker_pause_s": 0.2}
REQUEST = RewardRequest(
    uid="0.0.0.0",
    row={},
    prompt="p",
    response="r",
    token_ids=(1, 2, 3),
    action_mask=(False, True, True),
    turns=(Turn(start=1, end=3),),
    truncated=False,
)


@pytest.fixture(scope="session")
def plugins():
    return load("")


@pytest.fixture
def request_for():
    """``request_for(response, index, **row)``: one finished sample."""

    def make(response="r", index=0, **row):
        return replace(REQUEST, uid=f"0.{index}.0.0", response=response, row=row)

    return make


@pytest.fixture
def reward(plugins):
    """``reward(name, **options)``: the component itself, as a worker builds it."""

    def build(name, **options):
        registered = plugins.get("rlhf_rewards", name)
        return registered.build(registered.validate(options))

    return build


@pytest.fixture
def results(reward):
    """``results(name, requests, **options)``: what the component returns."""

    def run(name, requests, **options):
        return asyncio.run(reward(name, **options).score(requests))

    return run


@pytest.fixture
def one(results):
    """``one(name, request, **options)``: the result of one sample; raises the exception that stands in its place."""

    def run(name, request, **options):
        (result,) = results(name, [request], **options)
        if isinstance(result, Exception):
            raise result
        return result

    return run


@pytest.fixture
def panel_scores(plugins):
    """``panel_scores(options, requests, **reward_options)``: scores of a function, the way that a run gets them.

    Of the last of ``times`` calls.
    """

    def run(options, requests, *, component="function", times=1, **reward_options):
        registered = plugins.get("rlhf_rewards", component)
        selection = Selection(
            slot="reward.use",
            section="reward.mine",
            registered=registered,
            options=registered.validate(options),
            reward=RewardOptions(**reward_options),
        )

        async def all_of_it():
            panel = RewardPanel([selection])
            await panel.start()
            try:
                for _ in range(times):
                    scores = await panel.score(requests)
                return scores
            finally:
                await panel.close()

        return asyncio.run(all_of_it())

    return run


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


@pytest.fixture
def fast():
    """Options of ``http`` that do not keep a test waiting."""
    return FAST


@pytest.fixture
def length_of():
    """The usual answer: a response's reward is the length of its query."""
    return answer_lengths


def answer_lengths(message):
    return 200, {"rewards": [float(len(query)) for query in message["query"]]}


@pytest.fixture
def serve():
    """``serve(answer)``: a server in a thread."""
    running = []

    def start(answer=answer_lengths):
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
            thread.join(HANG_S)
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
