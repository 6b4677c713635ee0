"""One call: whatever the policy or the tool does wrong is a text for the policy, of a known kind."""

import asyncio
import json
import math

import pytest
from tests.deadlines import HANG_S

from rlhf_core import RolloutError
from rlhf_core.contracts import ToolCall
from rlhf_testing.errors import has_code
from rlhf_tools import Toolbox, ToolError, ToolFailure, ToolResult


def call(function, arguments="{}", *, name=None, timeout_s=HANG_S):
    tools = Toolbox([function])
    (tool,) = tools
    one = ToolCall(name=name or tool.name, arguments=arguments)
    return asyncio.run(tools.call(one, timeout_s=timeout_s))


def returning(value):
    async def give():
        """Give it."""
        return value

    return give


def raising(error):
    def give():
        """Fail."""
        raise error

    return give


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("half \ud83d of a pair", "half ? of a pair"),
        (None, "null"),
        (1.5, "1.5"),
        (math.inf, "Infinity"),
        ({"a": [1, None, "x"]}, '{"a":[1,null,"x"]}'),
        (ToolResult(text="as it is"), "as it is"),
    ],
)
def test_a_result_is_a_text_or_its_json(value, text):
    result = call(returning(value))

    assert (result.text, result.failure) == (text, None)


def test_a_value_without_json_is_a_failure_of_the_tool():
    circle = []
    circle.append(circle)

    assert call(returning(object())).failure == "invalid_result"
    assert call(returning(circle)).failure == "invalid_result"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": NaN}', "not JSON"),
        ('{"a": "\x00"}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "not JSON"),
        ("[1]", "got a list"),
        ('"a"', "got a text"),
        ("1", "got a number"),
        ("null", "got null"),
        ("true", "got true or false"),
        ("﻿{}", "not JSON"),
    ],
)
def test_arguments_that_are_no_json_object_are_told(arguments, said):
    result = call(returning(1), arguments)

    assert result.failure == ToolFailure.INVALID_JSON
    assert said in result.text
    assert len(result.text) < 1000


def test_an_unknown_tool_is_answered_with_the_names_of_the_known_ones():
    result = call(returning(1), name="guess" * 1000)

    assert result.failure == "unknown_tool"
    assert result.text.endswith("tools: give")
    assert len(result.text) < 1000


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad\nsecond line"), "error (failed): ValueError: bad"),
        (KeyError(), "error (failed): KeyError"),
        (ToolError("try 1 to 9"), "error (failed): try 1 to 9"),
        (SystemExit(3), "error (failed): SystemExit: 3"),
        (StopIteration(), "error (failed): RuntimeError: the function raised StopIteration"),
        (RecursionError("deep"), "error (failed): RecursionError: deep"),
        (TimeoutError("its own"), "error (failed): TimeoutError: its own"),
        (asyncio.CancelledError("its own"), "error (failed): CancelledError: its own"),
    ],
)
def test_an_exception_is_a_line_without_a_traceback(error, text):
    result = call(raising(error))

    assert (result.text, result.failure) == (text, ToolFailure.FAILED)


def test_a_long_message_is_cut():
    assert len(call(raising(ValueError("x" * 10**6))).text) < 1000


def test_an_exception_of_a_coroutine_is_told_too():
    async def give():
        """Fail."""
        raise asyncio.CancelledError

    assert call(give).text == "error (failed): CancelledError"


def test_a_failed_environment_is_an_error_of_the_run():
    with pytest.raises(RolloutError, match="server is gone", check=has_code("rollout/failed")):
        call(raising(RolloutError("server is gone")))


def test_a_coroutine_that_takes_too_long_is_cancelled():
    ended = []

    async def wait():
        """Wait."""
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.append(True)

    result = call(wait, timeout_s=0.05)

    assert result.failure == "timeout"
    assert ended == [True]


def test_the_calls_of_a_cancelled_episode_end():
    begun, ended = [], []

    async def wait():
        """Wait."""
        begun.append(True)
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.append(True)

    async def episode():
        tools = Toolbox([wait])
        one = asyncio.create_task(tools.call(ToolCall(name="wait", arguments=""), timeout_s=HANG_S))
        while not begun:
            await asyncio.sleep(0)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one

    asyncio.run(episode())
    assert ended == [True]


def test_many_calls_of_a_blocking_function_do_not_share_a_deadline():
    """500 calls of 10 ms on 64 threads take longer than one call may: waiting for a thread is no part of it."""
    import time

    def work(n: int) -> int:
        """Work."""
        time.sleep(0.01)
        return n

    async def play():
        tools = Toolbox([work])
        calls = [ToolCall(name="work", arguments=json.dumps({"n": n})) for n in range(500)]
        return await asyncio.gather(*(tools.call(one, timeout_s=HANG_S) for one in calls))

    assert [result.text for result in asyncio.run(play())] == [str(n) for n in range(500)]
