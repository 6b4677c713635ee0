"""Several engines as one: who is asked, and what happens when one dies."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import GenerationRequest, SamplingParams, Uid
from rlhf_plugin_inference.serving.served import EnginePool
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine


class GatedEngine:
    """Answers as ``FakeEngine``, when ``gate`` is open; ``error``: it fails instead."""

    def __init__(self, error: str | None = None):
        self._inner = FakeEngine()
        self.error = error
        self.asked: list[int] = []
        self.gate = asyncio.Event()

    async def generate(self, request):
        self.asked.append(request.uid.prompt)
        await self.gate.wait()
        if self.error is not None:
            raise RolloutError(self.error)
        return await self._inner.generate(request)


def request(prompt, samples=1):
    return GenerationRequest(
        uid=Uid(0, prompt),
        prompt_ids=(5, 9),
        seeds=tuple(range(prompt, prompt + samples)),
        sampling=SamplingParams(max_new_tokens=8),
    )


def tokens(completions):
    return [one.token_ids.tolist() for one in completions]


async def ask(engines, requests):
    """The answers in the order of the requests, each of which is made before any engine answers."""
    pool = EnginePool(engines)
    tasks = [asyncio.create_task(pool.generate(one)) for one in requests]
    await asyncio.sleep(0)
    for engine in engines:
        engine.gate.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_request_goes_to_the_engine_with_the_fewest_completions_in_flight():
    async def work():
        engines = [GatedEngine(), GatedEngine()]
        # 4 to the first; the second has 1, 2, 3, 4 in flight; then both have 4, and the first one gets the last.
        sizes = (4, 1, 1, 1, 1, 1)
        await ask(engines, [request(10 * n, size) for n, size in enumerate(sizes)])
        return [engine.asked for engine in engines]

    assert asyncio.run(work()) == [[0, 50], [10, 20, 30, 40]]


@pytest.mark.parametrize("num_engines", [1, 2, 3])
def test_answers_do_not_depend_on_the_number_of_engines(num_engines):
    async def work(count):
        return await ask([GatedEngine() for _ in range(count)], [request(n, 2) for n in range(7)])

    found, expected = asyncio.run(work(num_engines)), asyncio.run(work(1))

    for ours, theirs in zip(found, expected, strict=True):
        assert tokens(ours) == tokens(theirs)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_the_rows_of_a_dead_engine_go_to_the_others_and_it_gets_no_more(capsys):
    async def work():
        engines = [GatedEngine("it died"), GatedEngine(), GatedEngine()]
        pool = EnginePool(engines)
        for engine in engines:
            engine.gate.set()
        answers = [await pool.generate(request(n)) for n in range(4)]
        return [tokens(one) for one in answers], engines[0].asked

    async def whole():
        engine = GatedEngine()
        engine.gate.set()
        pool = EnginePool([engine])
        return [tokens(await pool.generate(request(n))) for n in range(4)]

    found, asked = asyncio.run(work())

    assert found == asyncio.run(whole())
    assert asked == [0]
    assert capsys.readouterr().err == "engine 0 of 3 is lost, 2 left: it died\n"


def test_requests_in_flight_with_a_dying_engine_are_all_answered():
    async def work():
        engines = [GatedEngine("it died"), GatedEngine()]
        return await ask(engines, [request(n) for n in range(6)]), engines[0].asked

    answers, asked = asyncio.run(work())

    assert asked == [0, 2, 4]
    assert all(len(one) == 1 for one in answers)


def test_a_request_that_no_engine_can_serve_fails_and_loses_none(capsys):
    async def work():
        engines = [GatedEngine("too long"), GatedEngine("too long, too")]
        (error,) = await ask(engines, [request(0)])
        for engine in engines:
            engine.error = None
        pool_answers = await ask(engines, [request(1), request(2)])
        return error, pool_answers

    error, later = asyncio.run(work())

    assert isinstance(error, RolloutError)
    assert str(error) == "too long"
    assert error.__notes__ == ["Another engine: too long, too"]
    assert all(len(one) == 1 for one in later)
    assert "lost" not in capsys.readouterr().err


def test_a_pool_of_nothing_is_refused():
    with pytest.raises(ConfigError, check=has_code("engine/none")):
        EnginePool([])
