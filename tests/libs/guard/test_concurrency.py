"""Coroutines are run to their end: what ends a process ends the run alone, by name."""

import asyncio
import gc
import sys

import pytest

from rlhf_core import PluginError
from rlhf_guard.concurrency import run_to_its_end
from rlhf_testing.errors import has_code


async def _exits(code):
    sys.exit(code)


def test_the_result_is_the_coroutines():
    async def work():
        await asyncio.sleep(0)
        return 7

    assert run_to_its_end(work()) == 7


@pytest.mark.parametrize("code", [0, 3, None, "a word"])
@pytest.mark.parametrize("awaited", [True, False])
def test_a_call_of_exit_is_an_error_that_says_where_and_everything_else_is_ended(code, awaited):
    ended = []

    async def work():
        task = asyncio.create_task(_exits(code))
        try:
            await (task if awaited else asyncio.Event().wait())
        except BaseException as error:
            ended.append(error)
            raise

    with pytest.raises(
        PluginError, match=r"code of the run raised SystemExit", check=has_code("run/exited")
    ) as caught:
        run_to_its_end(work())

    assert "test_concurrency.py" in str(caught.value)
    assert "sys.exit(code)" in str(caught.value)
    assert isinstance(caught.value.__cause__, SystemExit)
    assert len(ended) == 1
    if not awaited:
        assert isinstance(ended[0], asyncio.CancelledError)
        assert "SystemExit" in str(ended[0])


def test_what_is_cancelled_may_exit_too_and_is_told_once(caplog):
    closed = []

    async def stubborn():
        try:
            await asyncio.Event().wait()
        finally:
            sys.exit(5)

    async def work():
        others = [asyncio.create_task(stubborn()) for _ in range(3)]
        others += [asyncio.create_task(_exits(3)) for _ in range(3)]
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append(len(others))

    with pytest.raises(PluginError, match="SystemExit: 3", check=has_code("run/exited")):
        run_to_its_end(work())

    gc.collect()
    assert closed == [6]
    assert caplog.records == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_other_exceptions_are_raised_as_they_are(error):
    async def work():
        raise error("x")

    with pytest.raises(error):
        run_to_its_end(work())
