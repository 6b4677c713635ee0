"""A server of environments, and runs that connect to it: here both in one process."""

import asyncio
import contextlib
import errno
import importlib
import os
import secrets

import pytest

from rlhf_config.isolation import IsolationOptions
from rlhf_core import ConfigError, PluginError, RolloutError
from rlhf_core.component import Registered
from rlhf_guard.environments import connection, listening, places
from rlhf_guard.environments.frames import packed, read_frame
from rlhf_guard.environments.host import EnvironmentHost
from rlhf_guard.environments.listening import EnvironmentListener, token_of
from rlhf_testing.errors import has_code

TOKEN = "a token of some length"
HELLO = {
    "op": "hello",
    "id": 0,
    "protocol": 1,
    "environment": "probe",
    "options": {},
    "token": TOKEN,
}


@pytest.fixture
def served(probe, monkeypatch):
    """``async with served() as port``: a server of the probe."""
    monkeypatch.setenv("RLHF_ENV_TOKEN", TOKEN)
    probes = importlib.import_module("probe_environments")
    registered = Registered(probes.rlhf_environments()[0], "probe_environments")

    @contextlib.asynccontextmanager
    async def open_server(port=0):
        ready = asyncio.get_running_loop().create_future()
        listener = EnvironmentListener(registered, TOKEN)
        serving = asyncio.create_task(listener.serve("127.0.0.1", port, ready.set_result))
        try:
            yield await ready
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    return open_server


@pytest.fixture
def remote(probe):
    """``async with remote(port) as host``."""

    @contextlib.asynccontextmanager
    async def open_host(*ports, **options):
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        options = IsolationOptions(isolation="remote", address=addresses, **options)
        host = EnvironmentHost("probed", probe, "", options)
        try:
            yield host
        finally:
            await host.close()

    return open_host


def test_episodes_at_a_server_are_those_of_this_process(served, remote, task, say, within):
    async def play(environment):
        first = await environment.reset(task(text="go"), 3)
        steps = [await environment.step(say(word, turn)) for turn, word in enumerate("ab")]
        rewards = await environment.episode_rewards()
        await environment.close()
        return [first, *steps, rewards]

    async def there():
        async with served() as port, remote(port) as host:
            return await asyncio.gather(*(play(host.make()) for _ in range(3)))

    probes = importlib.import_module("probe_environments")
    here = within(play(probes.Probe(probes.ProbeConfig(size=4))))
    assert within(there()) == [here] * 3


async def answers(port, *frames):
    """Everything that the server sends before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for frame in frames:
        writer.write(frame if isinstance(frame, bytes) else packed(frame))
    found = []
    with contextlib.suppress(ConnectionError):
        while (answer := await read_frame(reader)) is not None:
            found.append(answer)
    writer.close()
    return found


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"token": "wrong"}, "was given a wrong token"),
        ({"token": None}, "was given a wrong token"),
        ({"token": "\ud800"}, "was given a wrong token"),
        ({"token": [TOKEN]}, "was given a wrong token"),
        ({"protocol": 2}, "expected version 1 of the environments' protocol, got 2"),
        ({"protocol": None}, "expected version 1 of the environments' protocol, got None"),
        ({"environment": "other"}, "serves probe, not 'other'"),
        ({"environment": None}, "serves probe, not None"),
        ({"options": {"sizes": 3}}, "raised ValidationError"),
        ({"options": [3]}, "raised"),
    ],
)
def test_a_greeting_that_is_wrong_is_refused_with_the_reason(served, within, changed, text):
    async def run():
        async with served() as port:
            return await answers(port, {**HELLO, **changed}, {"op": "ping", "id": 1})

    (answer,) = within(run())
    assert text in answer["problem"]["text"]


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2[]", b"\0\0\0\5hello"],
)
def test_garbage_ends_its_own_connection_alone(served, remote, task, within, data):
    async def run():
        async with served() as port, remote(port) as host:
            environment = host.make()
            await environment.reset(task(), 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            await environment.close()

    within(run())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"op": "step", "id": 1, "episode": 9, "action": {}}, "there is no open episode 9"),
        ({"op": "step", "id": 1}, "episode of type NoneType; expected int"),
        ({"op": "fly", "id": 1}, "there is no request 'fly'"),
        ({"op": "reset", "id": 1, "episode": 1, "seed": 0, "task": 3}, "its task cannot be read"),
        ({"op": "rows", "id": 1, "split": "train", "start": -1, "count": 3}, "rows -1 to 2"),
        ({"op": "rows", "id": 1, "split": 3, "start": 0, "count": 3}, "a split named 3"),
        (
            {"op": "rows", "id": 1, "split": "train", "start": 0, "count": 10**9},
            "expected 1 to 4096",
        ),
    ],
)
def test_a_request_that_is_wrong_is_answered_with_the_reason(served, within, request_, text):
    async def run():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for message in (HELLO, request_, {"op": "ping", "id": 2}):
                writer.write(packed(message))
            found = [await read_frame(reader) for _ in range(3)]
            writer.close()
            return {answer["id"]: answer for answer in found}

    found = within(run())
    assert text in found[1]["problem"]["text"]
    assert found[2] == {"id": 2, "ok": {}}


def test_a_connection_that_says_nothing_is_closed(served, within, monkeypatch):
    monkeypatch.setattr(listening, "HELLO_LIMIT_S", 0.1)

    async def run():
        async with served() as port:
            return await answers(port)

    assert within(run()) == []


def test_a_wrong_token_ends_the_start_of_a_run(served, remote, within, monkeypatch):
    async def run():
        async with served() as port:
            monkeypatch.setenv("RLHF_ENV_TOKEN", "another token")
            async with remote(port) as host:
                await host.start()

    with pytest.raises(
        PluginError,
        match=r"probe is not served by server 127\.0\.0\.1:\d+: .* wrong token",
        check=has_code("environment/unreachable"),
    ):
        within(run())


def test_a_server_that_is_not_there_is_named(remote, monkeypatch, within):
    monkeypatch.setenv("RLHF_ENV_TOKEN", TOKEN)
    monkeypatch.setattr(places, "CONNECT_LIMIT_S", 0.3)

    async def run():
        async with remote(1) as host:
            await host.start()

    with pytest.raises(
        PluginError,
        match=r"expected a server at 127\.0\.0\.1:1, .*rlhf env serve",
        check=has_code("environment/unreachable"),
    ):
        within(run())


def test_a_run_without_a_token_is_refused(probe, monkeypatch):
    monkeypatch.delenv("RLHF_ENV_TOKEN", raising=False)
    options = IsolationOptions(isolation="remote", address=("127.0.0.1:1",))

    with pytest.raises(ConfigError, match="RLHF_ENV_TOKEN", check=has_code("environment/no-token")):
        EnvironmentHost("probed", probe, "", options)


def test_a_server_that_restarts_costs_its_episodes_and_serves_the_next(
    served, remote, task, say, within
):
    async def run():
        async with contextlib.AsyncExitStack() as stack:
            async with served() as port:
                host = await stack.enter_async_context(remote(port, restarts=1))
                environment = host.make()
                await environment.reset(task(), 0)
                step = asyncio.create_task(environment.step(say("wait 3600")))
                await asyncio.sleep(0.05)
            with pytest.raises(
                RolloutError,
                match=r"task 0\.0\.0\.0, server .* was cancelled, because the server ends",
                check=has_code("environment/died"),
            ):
                await step
            await environment.close()
            async with served(port):
                again = host.make()
                assert (await again.reset(task(), 4)).text == "4"
                await again.close()

    within(run())


def test_a_server_that_answers_no_more_costs_the_deadline(probe, remote, task, within, monkeypatch):
    """A half-open connection: greeted, then silent, as behind a firewall that forgot it."""
    monkeypatch.setenv("RLHF_ENV_TOKEN", TOKEN)
    monkeypatch.setattr(connection, "CANCEL_LIMIT_S", 0.1)

    async def silent(reader, writer):
        hello = await read_frame(reader)
        writer.write(packed({"id": hello["id"], "ok": {"protocol": 1}}))
        await reader.read()
        writer.close()

    async def run():
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, remote(port, step_timeout_s=0.2) as host:
            environment = host.make()
            with pytest.raises(
                RolloutError,
                match=r"did not answer reset within 0\.2 s",
                check=has_code("environment/too-slow"),
            ):
                await environment.reset(task(), 0)
            await asyncio.sleep(0.2)
            await environment.close()

    within(run())


@pytest.mark.parametrize("greeting", [{"protocol": 2}, {}, {"protocol": "1"}])
def test_a_server_of_another_protocol_is_refused(remote, within, monkeypatch, greeting):
    monkeypatch.setenv("RLHF_ENV_TOKEN", TOKEN)

    async def other(reader, writer):
        hello = await read_frame(reader)
        writer.write(packed({"id": hello["id"], "ok": greeting}))
        await reader.read()
        writer.close()

    async def run():
        server = await asyncio.start_server(other, "127.0.0.1", 0)
        async with server, remote(server.sockets[0].getsockname()[1]) as host:
            await host.start()

    with pytest.raises(
        PluginError, match="version 1", check=has_code("environment/other-protocol")
    ):
        within(run())


def test_episodes_of_a_connection_that_ends_are_closed(served, within, task, capfd):
    async def run():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            from rlhf_core.contracts import Action, Stop
            from rlhf_guard.environments.messages import action_fields, task_fields

            action = action_fields(Action(text="close", token_ids=(), stop=Stop.EOS, turn=0))
            writer.write(packed(HELLO))
            writer.write(
                packed(
                    {"op": "reset", "id": 1, "episode": 1, "seed": 0, "task": task_fields(task())}
                )
            )
            await read_frame(reader)
            await read_frame(reader)
            writer.write(packed({"op": "step", "id": 2, "episode": 1, "action": action}))
            await read_frame(reader)
            writer.close()
            while "closed" not in capfd.readouterr().out:
                await asyncio.sleep(0.01)

    within(run())


def test_a_token_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "token"
    token = token_of(path)

    assert token_of(path) == token
    assert len(token) > 30
    assert os.stat(path).st_mode & 0o077 == 0


def test_half_a_token_is_not_left(tmp_path, monkeypatch):
    def full(bits):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(secrets, "token_urlsafe", full)
    with pytest.raises(
        ConfigError,
        match="could not be written: No space left",
        check=has_code("output/not-written"),
    ):
        token_of(tmp_path / "token")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "short\n"])
def test_a_token_that_can_be_guessed_is_refused(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)

    with pytest.raises(
        ConfigError, match="16 characters", check=has_code("environment/short-token")
    ):
        token_of(path)


def test_a_component_that_another_process_names_by_plugin_is_served(served, within):
    async def run():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(packed({**HELLO, "environment": "probe_environments:probe"}))
            answer = await read_frame(reader)
            writer.close()
            return answer

    assert within(run())["ok"]["environment"] == "probe"


def test_connections_without_a_token_keep_nobody_out(served, remote, task, within, monkeypatch):
    monkeypatch.setattr(listening, "MAX_STRANGERS", 4)

    async def run():
        async with served() as port:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            async with remote(port) as host:
                observation = await host.make().reset(task(text="go"), 3)
            for _, writer in idle:
                writer.close()
            return observation.text

    assert within(run()) == "go3"


@pytest.mark.parametrize("call", [None, [1], {"a": 1}, "1", True])
def test_a_cancel_of_a_wrong_form_is_answered(served, within, call):
    async def run():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answers = []
            for message in (
                HELLO,
                {"op": "cancel", "id": 1, "call": call},
                {"op": "ping", "id": 2},
            ):
                writer.write(packed(message))
                answers.append(await read_frame(reader))
            writer.close()
            return answers

    _, refused, pong = within(run())
    assert "cancel names no request: expected its number in call" in refused["problem"]["text"]
    assert pong == {"id": 2, "ok": {}}
