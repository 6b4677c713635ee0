"""The environment `tools`: options, prompts of the data, and an episode with the executor of turns."""

import asyncio
import sys

import pytest

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Action, Stop, Task, ToolCall, Uid
from rlhf_plugin_tools.config import ToolsConfig
from rlhf_plugin_tools.offered import OfferedTools
from rlhf_testing.errors import has_code
from rlhf_tools.sandbox.inside import calls, files

TASK = Task(uid=Uid(0, 0), messages=({"role": "user", "content": "2 * 3?"},))

TOOLS = '''
from rlhf_tools import function_tool


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def halve(x: int) -> int:
    """Halve a number."""
    return x // 2


BOTH = [double, function_tool(halve, name="half")]
'''


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS)
    return path


def play(config, *turns):
    async def episode():
        environment = OfferedTools(config)
        first = await environment.reset(TASK, 0)
        results = [await environment.step(turn) for turn in turns]
        await environment.close()
        return first, results

    return asyncio.run(episode())


def action(*calls_made, text=""):
    return Action(text=text, token_ids=(), stop=Stop.EOS, turn=0, tool_calls=calls_made)


def test_functions_are_offered_and_an_answer_ends_the_episode(tools):
    config = ToolsConfig(functions=(f"{tools}:double", f"{tools}:BOTH")[1:])
    call = ToolCall(name="half", arguments='{"x": 6}')
    first, (called, answered) = play(config, action(call), action(text="3"))

    assert first.messages == TASK.messages
    assert [tool["function"]["name"] for tool in first.tools] == ["double", "half"]
    assert called.observation.messages[0]["content"] == "3"
    assert (answered.done, answered.reward) == (True, 0.0)
    assert answered.metrics["tools/calls"] == answered.metrics["tools/answered"] == 1.0


@pytest.mark.skipif(
    sys.platform != "linux" or not (files.version() and calls.known()), reason="no sandbox here"
)
def test_python_is_offered_on_request():
    call = ToolCall(name="python", arguments='{"code": "print(6 * 7)"}')
    _, (called,) = play(ToolsConfig(sandboxed_python=True), action(call))

    assert called.observation.messages[0]["content"] == "42\n"


def test_a_prompt_that_is_no_chat_is_refused(tools):
    environment = OfferedTools(ToolsConfig(functions=(f"{tools}:double",)))

    with pytest.raises(RolloutError, match=r"--data\.chat true", check=has_code("rollout/no-chat")):
        asyncio.run(environment.reset(Task(uid=Uid(0, 0), prompt_ids=(1, 2)), 0))


def test_an_environment_without_tools_is_refused():
    with pytest.raises(ConfigError, check=has_code("tool/none")):
        OfferedTools(ToolsConfig())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"functions": ("my_tools.py",)}, "FILE.py:NAME"),
        ({"mcp": ("python server.py",)}, "NAME=COMMAND"),
        ({"mcp": ("x='",)}, "no command"),
    ],
)
def test_options_that_name_nothing_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        ToolsConfig(**options)


def test_servers_are_commands_or_addresses():
    config = ToolsConfig(mcp=("files=npx -y 'a b'", "web=http://x/mcp"), mcp_per_episode=True)
    files_server, web = config.servers()

    assert files_server.command == ("npx", "-y", "a b")
    assert web.url == "http://x/mcp"
    assert not files_server.shared
