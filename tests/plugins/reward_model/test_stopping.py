"""``rlhf serve-rm`` ends in seconds, whatever its clients and its model do. The model of these tests never answers."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from tests.deadlines import HANG_S

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

SERVER = """
import sys, time
from rlhf_trainer.loop import interrupts
interrupts.LEAVE_S = 0.2
from rlhf_plugin_reward_model.serving import command, stopping
command.LEAVE_S = stopping.LEAVE_S = 0.2
interrupts.own_process()

def score(sequences):
    print("scoring", flush=True)
    time.sleep(3600)

def tokens(request):
    return [[1] for _ in request.queries]

command._load = lambda options: command.ServedModel(lambda: "a model", tokens, score)
try:
    code = command.serve_rm(["model", "--port", "0", "--stop-timeout-s", *sys.argv[1:]])
except KeyboardInterrupt:
    code = interrupts.interrupted_code()
sys.exit(code)
"""
BODY = json.dumps({"query": ["a text"]}).encode()
HEAD = (
    "POST /get_reward HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer secret\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
).encode()


@contextmanager
def serving(stop_timeout_s):
    """The server's process, and a function that connects to it and sends bytes."""
    environment = {**os.environ, "RLHF_REWARD_TOKEN": "secret", "OMP_NUM_THREADS": "1"}
    with (
        ExitStack() as clients,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, str(stop_timeout_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            port = int(lines[1].rpartition(":")[2].partition("/")[0])

            def connect(sent=b""):
                client = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
                clients.callback(client.close)
                client.sendall(sent)
                return client

            yield process, connect
        finally:
            process.kill()


def healthy(connect):
    """A connection over which the server has said that it is well, and which stays open."""
    client, found = connect(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"), b""
    while b"}" not in found:
        found += client.recv(65536)
    return client


def answered(client):
    """What a server sends until it closes the connection."""
    found = b""
    while part := client.recv(65536):
        found += part
    return found.decode()


@pytest.mark.slow
def test_clients_that_are_gone_idle_or_slow_to_send_hold_up_no_end():
    with serving(3600) as (process, connect):
        gone = connect(HEAD + BODY)
        assert process.stdout.readline() == "scoring\n"
        kept = healthy(connect)
        others = [connect(), connect(HEAD[:30]), connect(HEAD + BODY[:5])]
        # The server reads connections in their order: once it has answered this one, it has read the others.
        healthy(connect)
        gone.close()
        process.send_signal(signal.SIGTERM)

        said = [answered(client) for client in (kept, *others)]
        assert process.wait(HANG_S) == 0
        assert "Traceback" not in process.stderr.read()

    assert said[:3] == ["", "", ""]
    assert said[3].startswith("HTTP/1.1 503")
    assert "the server stops" in said[3]


@pytest.mark.slow
def test_a_request_in_work_has_its_time_and_is_then_told():
    with serving(1) as (process, connect):
        client = connect(HEAD + BODY)
        assert process.stdout.readline() == "scoring\n"
        process.send_signal(signal.SIGINT)

        said = answered(client)
        assert process.wait(HANG_S) == 0
        assert "Traceback" not in process.stderr.read()

    assert said.startswith("HTTP/1.1 503")
    assert "the server stops" in said


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(number, code):
    with serving(3600) as (process, connect):
        half, _ = connect(HEAD + BODY[:5]), connect(HEAD + BODY)
        assert process.stdout.readline() == "scoring\n"
        process.send_signal(number)
        assert "503" in answered(half)  # the first one was understood
        process.send_signal(number)

        assert process.wait(HANG_S) == code
