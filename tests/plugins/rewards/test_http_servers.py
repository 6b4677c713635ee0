"""The reward ``http`` against servers that are several, slow, broken, gone, or not there yet."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from tests.deadlines import HANG_S

from rlhf_core import RewardError
from rlhf_plugin_rewards.config import HttpConfig
from rlhf_plugin_rewards.remote import reward as module
from rlhf_plugin_rewards.remote.reward import pause_before
from rlhf_plugin_rewards.remote.servers import Servers


def rewards(results):
    return [result.reward for result in results]


@pytest.mark.parametrize("choose", ["round_robin", "least_loaded"])
def test_several_servers_share_the_work(serve, ask, choose):
    servers = [serve(), serve()]

    found = ask([one.url for one in servers], ["r"] * 8, batch_size=1, choose=choose)

    assert rewards(found) == [2.0] * 8
    assert all(len(one.messages) >= 2 for one in servers)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_that_is_not_able_is_asked_again(length_of, serve, ask, status):
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

    assert f"status 503: later (deadline_s = {HANG_S:g} allows no further try)" in str(found)
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
    slow = serve(lambda message: (release.wait(HANG_S), (200, "too late"))[1])
    quick = serve()

    try:
        # A quick answer that comes too late on a busy machine is asked for again.
        found = ask(
            *([slow.url, quick.url], ["r"]),
            **{"choose": "round_robin", "request_timeout_s": 1.0},
            **{"max_tries": 100, "breaker_failures": 100},
        )
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

    reward("http", urls=[f"http://127.0.0.1:{address[1]}/"], deadline_s=HANG_S)

    timer.join(HANG_S)
    listening[0].close()


def test_a_server_that_goes_is_a_clear_error_within_the_deadline(fast, serve, reward, request_for):
    server = serve()
    options = {"breaker_pause_s": 2 * HANG_S, "max_tries": 100}
    component = reward("http", urls=[server.url], **{**fast, **options})
    server.stop()
    started = time.monotonic()

    found = asyncio.run(component.score([request_for("r", 0), request_for("s", 1)]))

    assert time.monotonic() - started < HANG_S
    for error in found:
        assert f"no reward server answers (deadline_s = {HANG_S:g} allows no further try)" in str(
            error
        )
        assert server.url in str(error)
        assert "3 in a row, left alone for another" in str(error)


def test_the_breaker_opens_and_closes_again(
    fast, length_of, serve, reward, request_for, monkeypatch
):
    """A server that comes back is used again after its pause; until then it is not asked at all."""
    passed_s = 0.0
    monkeypatch.setattr(module, "_now", lambda: time.monotonic() + passed_s)
    broken = True
    server = serve(lambda message: (503, "broken") if broken else length_of(message))
    options = {"max_tries": 2, "breaker_failures": 2}
    component = reward("http", urls=[server.url], **{**fast, **options, "breaker_pause_s": 3600.0})

    def score():
        (result,) = asyncio.run(component.score([request_for()]))
        return result, len(server.messages)

    first, asked = score()
    second, still = score()
    broken, passed_s = False, 3600.0
    third, _ = score()

    assert (asked, "503" in str(first)) == (2, True)
    assert (still, "no reward server answers" in str(second)) == (2, True)
    assert third.reward == 2.0


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
        thread.join(HANG_S)

    assert url in str(found)
    assert "(asked 2 times)" in str(found)
