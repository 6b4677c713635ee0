"""Limits of an episode, tool messages in the order of the calls, and metrics."""

import asyncio
import json

import pytest

from rlhf_core import RolloutError
from rlhf_core.contracts import ToolCall
from rlhf_testing.errors import has_code
from rlhf_tools import Toolbox, ToolLimits, ToolResult, ToolSession


async def echo(text: str) -> str:
    """Return the text."""
    return text


async def fail() -> str:
    """Fail."""
    raise ValueError("no")


def calls(*texts):
    return [
        ToolCall(name="echo", arguments=json.dumps({"text": text}), id=f"call_{index}")
        for index, text in enumerate(texts)
    ]


def answers(session, given):
    return asyncio.run(session.answer(given))


def test_each_call_has_a_message_with_its_id_and_name():
    session = ToolSession(Toolbox([echo]))

    assert answers(session, calls("a", "b")) == (
        {"role": "tool", "tool_call_id": "call_0", "name": "echo", "content": "a"},
        {"role": "tool", "tool_call_id": "call_1", "name": "echo", "content": "b"},
    )


def test_an_image_of_pillow_is_shown_to_the_policy():
    from PIL import Image

    picture = Image.new("L", (2, 2))

    async def screen():
        """Show the screen."""
        return picture

    async def search():
        """Search for pictures."""
        return ToolResult(text="two", images=(picture, "a.png"))

    async def pages():
        """Show the pages, with their numbers."""
        return ["first", picture, 2, picture]

    session = ToolSession(Toolbox([screen, search, pages]), ToolLimits(max_result_chars=5))
    given = [ToolCall(name=name, arguments="{}") for name in ("screen", "search", "pages")]
    shown = {"type": "image", "image": picture}

    assert [message["content"] for message in answers(session, given)] == [
        [shown],
        [{"type": "text", "text": "two"}, shown, {"type": "image", "image": "a.png"}],
        [
            {"type": "text", "text": "first\n[2 of 7 characters cut off]"},
            shown,
            shown,
        ],
    ]
    assert session.metrics()["tools/errors"] == 0


def test_what_the_policy_wrote_opens_no_file():
    """A tool that returns its arguments would otherwise show any image of the machine."""

    async def repeat(parts: list):
        """Return the parts."""
        return parts

    part = {"type": "image", "image": "/etc/secret.png"}
    given = [ToolCall(name="repeat", arguments=json.dumps({"parts": [part]}))]

    (message,) = answers(ToolSession(Toolbox([repeat])), given)
    assert message["content"] == json.dumps([part], separators=(",", ":"))


@pytest.mark.parametrize("parallel", [False, True])
def test_results_keep_the_order_of_the_calls_whichever_ends_first(parallel):
    running, most = 0, 0

    async def later(n: int) -> int:
        """Wait the longer, the earlier the call."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - n):
            await asyncio.sleep(0)
        running -= 1
        return n

    session = ToolSession(Toolbox([later]), ToolLimits(parallel=parallel))
    given = [ToolCall(name="later", arguments=json.dumps({"n": n})) for n in range(5)]

    assert [message["content"] for message in answers(session, given)] == list("01234")
    assert most == (5 if parallel else 1)


def test_calls_beyond_the_turns_limit_are_refused():
    session = ToolSession(Toolbox([echo]), ToolLimits(max_calls_per_turn=2))
    texts = [message["content"] for message in answers(session, calls("a", "b", "c"))]

    assert texts[:2] == ["a", "b"]
    assert texts[2] == "error (limit): at most 2 calls in one turn; this one was not made"


def test_calls_beyond_the_episodes_limit_are_refused():
    session = ToolSession(Toolbox([echo]), ToolLimits(max_calls=3))
    answers(session, calls("a", "b"))
    texts = [message["content"] for message in answers(session, calls("c", "d"))]

    assert texts[0] == "c"
    assert texts[1].startswith("error (limit): all 3 calls of the episode are used up")


def test_a_long_result_is_cut_and_says_so():
    session = ToolSession(Toolbox([echo]), ToolLimits(max_result_chars=10))
    (message,) = answers(session, calls("x" * 50))

    assert message["content"] == "x" * 10 + "\n[40 of 50 characters cut off]"
    assert session.metrics()["tools/cut_chars"] == 40.0


def test_an_episode_of_too_much_text_gets_no_more():
    session = ToolSession(Toolbox([echo]), ToolLimits(max_episode_chars=10))
    first, second = (answers(session, calls(text))[0]["content"] for text in ("x" * 11, "y"))

    assert first == "x" * 11
    assert second.startswith(
        "error (limit): results of this episode have 11 characters, of at most 10"
    )


def test_a_tool_that_calls_itself_is_stopped():
    async def again(n: int) -> str:
        """Call this tool again."""
        inner = await session.call(ToolCall(name="again", arguments=json.dumps({"n": n + 1})))
        return f"{n}>{inner.text}"

    session = ToolSession(Toolbox([again]), ToolLimits(max_depth=3))
    result = asyncio.run(session.call(ToolCall(name="again", arguments='{"n": 1}')))

    assert result.text == "1>2>3>error (limit): tools may call tools 3 deep"


def test_metrics_count_calls_and_failures_by_tool_and_kind():
    session = ToolSession(Toolbox([echo, fail]))
    answers(
        session,
        [
            *calls("a"),
            ToolCall(name="fail", arguments=""),
            ToolCall(name="echo", arguments="{"),
            ToolCall(name="nope", arguments=""),
        ],
    )
    metrics = session.metrics()

    assert metrics["tools/calls"] == 4.0
    assert metrics["tools/errors"] == 3.0
    assert (metrics["tools/calls/echo"], metrics["tools/calls/fail"]) == (2.0, 1.0)
    assert metrics["tools/errors/invalid_json"] == metrics["tools/errors/failed"] == 1.0
    assert metrics["tools/errors/timeout"] == 0.0


async def gone() -> str:
    """Find that the container is gone."""
    raise RolloutError("the container is gone", code="environment/unreachable")


async def gone_beside() -> str:
    """Look at two containers."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.Event().wait())
        group.create_task(gone())
    return ""


async def torn() -> str:
    """Read two files."""
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(asyncio.Event().wait())
    return ""


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", ["gone", "gone_beside"])
def test_what_a_tool_says_of_its_environment_reaches_the_run_as_it_was_said(parallel, name):
    session = ToolSession(Toolbox([gone, gone_beside, echo]), ToolLimits(parallel=parallel))
    given = [ToolCall(name=name, arguments="{}", id="0"), *calls("a")]

    with pytest.raises(
        RolloutError, match=r"^the container is gone$", check=has_code("environment/unreachable")
    ):
        answers(session, given)


def test_a_tool_that_does_several_things_at_once_fails_in_the_words_of_the_first_that_failed():
    session = ToolSession(Toolbox([torn]))

    (message,) = answers(session, [ToolCall(name="torn", arguments="{}", id="0")])

    assert message["content"] == "error (failed): ValueError: no"
