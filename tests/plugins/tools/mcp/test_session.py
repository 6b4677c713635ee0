"""Sessions with a real server of the official SDK: by a command, and over HTTP on loopback."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S, PATIENT_S
from tests.open_places import listening, promised

from rlhf_core import RolloutError
from rlhf_core.contracts import Action, StepResult, Stop, Task, ToolCall, Uid
from rlhf_testing.errors import has_code
from rlhf_tools import ToolEnvironment
from rlhf_tools.mcp.server import McpServer
from rlhf_tools.mcp.session import McpSession

SERVER = str(Path(__file__).parent / "tiny_server.py")
TASK = Task(uid=Uid(0, 0))
LOCAL = McpServer(
    name="tiny", command=(sys.executable, SERVER), timeout_s=PATIENT_S, start_s=PATIENT_S
)


class Asking(ToolEnvironment):
    async def begin(self, task, seed):
        return [{"role": "user", "content": "ask"}]

    async def judge(self, action):
        return StepResult(reward=1.0)


@pytest.fixture(scope="module")
def address():
    """Address of a server over HTTP that answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


async def asked(environment, *calls):
    """Texts of the answers to some calls, each a name, or a name with arguments."""
    given = [call if isinstance(call, tuple) else (call, "{}") for call in calls]
    made = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in given)
    result = await environment.step(
        Action(text="", token_ids=(), stop=Stop.EOS, turn=0, tool_calls=made)
    )
    return [message["content"] for message in result.observation.messages]


async def episode(server, *calls):
    environment = Asking(servers=[server])
    try:
        await environment.reset(TASK, 0)
        return await asked(environment, *calls)
    finally:
        await environment.close()


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_tools_of_a_server_are_offered_and_called(over, request):
    if over == "stdio":
        server = LOCAL
    else:
        server = McpServer(name="tiny", url=request.getfixturevalue("address"), timeout_s=HANG_S)

    async def play():
        environment = Asking(servers=[server])
        first = await environment.reset(TASK, 0)
        texts = await asked(
            environment, ("add", '{"a": 2, "b": 3}'), ("add", '{"a": "x"}'), "fail", "picture"
        )
        await environment.close()
        return first.tools, texts

    tools, (total, misused, failed, picture) = asyncio.run(play())
    add = next(tool["function"] for tool in tools if tool["function"]["name"] == "add")

    assert add["description"] == "Add two numbers."
    assert add["parameters"]["properties"]["a"]["type"] == "integer"
    assert total == "5"
    assert misused.startswith("error (failed): ")
    assert failed.startswith("error (failed): ")
    assert picture == "[image: not shown]"


@pytest.mark.slow
def test_episodes_share_a_session_or_have_one_each():
    own = LOCAL.model_copy(update={"shared": False})

    async def play(server):
        return await asyncio.gather(*(episode(server, "calls", "process") for _ in range(3)))

    shared = asyncio.run(play(LOCAL))
    single = asyncio.run(play(own))

    assert sorted(count for count, _ in shared) == ["1", "2", "3"]
    assert len({process for _, process in shared}) == 1
    assert [count for count, _ in single] == ["1", "1", "1"]
    assert len({process for _, process in single}) == 3
    # A shared server ends with the event loop, one of an episode with the episode.
    assert not any(is_alive(int(process)) for _, process in [*shared, *single])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read in /proc/net")
def test_a_server_that_a_run_starts_listens_nowhere():
    async def play():
        environment = Asking(servers=[LOCAL])
        try:
            await environment.reset(TASK, 0)
            (process,) = await asked(environment, "process")
            return listening(int(process))
        finally:
            await environment.close()

    assert asyncio.run(play()) == set()
    assert promised("What listens, and where", "servers of MCP").startswith("nothing listens")


@pytest.mark.slow
def test_an_episodes_own_server_ends_when_the_episode_is_closed():
    async def play():
        (process,) = await episode(LOCAL.model_copy(update={"shared": False}), "process")
        return is_alive(int(process))

    assert asyncio.run(play()) is False


@pytest.mark.slow
def test_a_server_that_dies_fails_the_episode_and_the_next_episode_gets_a_new_one():
    async def play():
        (before,) = await episode(LOCAL, "process")
        with pytest.raises(
            RolloutError,
            match=r"tiny .* died during a call of die",
            check=has_code("tool/server-failed"),
        ) as raised:
            await episode(LOCAL, "die")
        (after,) = await episode(LOCAL, "process")
        return before, after, str(raised.value)

    before, after, message = asyncio.run(play())

    assert before != after
    assert "It wrote: the server gives up" in message


def test_a_call_that_takes_too_long_is_told_to_the_policy_and_the_session_goes_on():
    hasty = LOCAL.model_copy(update={"timeout_s": 0.05})

    async def play():
        session = await McpSession.open(hasty)
        environment = Asking(session.tools)
        await environment.reset(TASK, 0)
        (text,) = await asked(environment, "wait")
        result = await session.call("add", {"a": 1, "b": 1})
        await session.close()
        return text, result.text

    text, total = asyncio.run(play())
    assert text == "error (timeout): wait did not answer within 0.05 s"
    assert total == "2"


@pytest.mark.slow
def test_a_local_server_gets_no_secrets_of_the_run(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    given = LOCAL.model_copy(update={"env": {"MINE": "1"}})
    ((names),) = asyncio.run(episode(given, "variables"))

    assert "MINE" in names
    assert "SECRET_KEY" not in names


@pytest.mark.slow
def test_tools_can_be_chosen_and_prefixed():
    chosen = LOCAL.model_copy(update={"only": ("add", "calls"), "prefix": "tiny_"})

    async def play():
        environment = Asking(servers=[chosen])
        first = await environment.reset(TASK, 0)
        texts = await asked(environment, ("tiny_add", '{"a": 2, "b": 3}'), "add")
        await environment.close()
        return [tool["function"]["name"] for tool in first.tools], texts

    names, texts = asyncio.run(play())
    assert names == ["tiny_add", "tiny_calls"]
    assert texts[0] == "5"
    assert texts[1].startswith("error (unknown_tool)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"command": (sys.executable, "-c", "raise SystemExit('no licence')")}, "no licence"),
        ({"command": ("/no/such/program",)}, "FileNotFoundError"),
        (
            {"command": (sys.executable, "-c", "print('hello'); input()")},
            "could not be reached|did not list",
        ),
        (
            {"command": (sys.executable, "-c", "import time; time.sleep(1000)"), "start_s": 0.5},
            "did not list",
        ),
        (
            {"command": (sys.executable, SERVER), "only": ("subtract",)},
            "has no tool subtract; it has add",
        ),
        ({"url": "http://127.0.0.1:1/mcp"}, "could not be reached"),
    ],
)
def test_a_server_that_cannot_be_used_is_an_error_of_the_environment(server, said):
    given = McpServer(**{"name": "tiny", "start_s": HANG_S, **server})

    with pytest.raises(RolloutError, match=said, check=has_code("tool/server-failed")):
        asyncio.run(episode(given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "takes one of command and url"),
        ({"command": ("a",), "url": "http://x"}, "takes one of command and url"),
        ({"url": "ftp://x"}, "no http or https address"),
    ],
)
def test_a_server_has_one_place(given, said):
    with pytest.raises(ValueError, match=said):
        McpServer(name="x", **given)
