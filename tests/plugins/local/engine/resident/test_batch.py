"""However rarely the host looks, no sample is lost, doubled or changed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_core import RolloutError
from rlhf_plugin_local.engine.resident import bursts
from rlhf_plugin_local.engine.resident.pages import PAGE
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

EOS = 2
PROMPTS = [(5, 6, 7), (9, 8), tuple(range(4, 4 + PAGE)), tuple(range(4, 70)), (5,) * (2 * PAGE + 3)]
MAX_LENGTH = 3 * PAGE

requests = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from(PROMPTS),
        "seeds": st.integers(1, 6).map(lambda n: tuple(range(n))),
        "max_new_tokens": st.sampled_from([1, 2, 5, 30, 100]),
        "stop": st.sampled_from([(), ("a",), ("3",)]),
        "min_new_tokens": st.sampled_from([0, 0, 3]),
        "temperature": st.sampled_from([1.0, 1.0, 0.0, 0.7]),
    }
)
events = st.one_of(
    requests,
    st.sampled_from(["cancel", "pause", "update"]),
    st.integers(1, 4),  # turns of the event loop
)


async def turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


class Life:
    """What happens to an engine: requests, canceled ones, pauses and updates of weights."""

    def __init__(self, engine, lm, source_of, make_request) -> None:
        self.engine = engine
        self.source = source_of(lm)
        self.make_request = make_request
        self.tasks: list[tuple[object, asyncio.Task]] = []
        self.canceled: set[int] = set()
        self.version = 0

    async def happen(self, event: object) -> None:
        if isinstance(event, dict):
            request = self.make_request(number=len(self.tasks), **event)
            self.tasks.append((request, asyncio.create_task(self.engine.generate(request))))
        elif isinstance(event, int):
            await turns(event)
        elif event == "cancel" and self.tasks:
            self.canceled.add(len(self.tasks) // 2)
            self.tasks[len(self.tasks) // 2][1].cancel()
        elif event in ("pause", "update"):
            await self.engine.pause()
            await turns(3)
            if event == "update":
                self.version += 1
                await self.engine.update_weights(self.version, self.source)
            await self.engine.resume()


@pytest.mark.parametrize(
    ("fewest", "most", "options"),
    [
        (1, 1, {}),
        (4, 32, {}),
        (50, 50, {}),
        (4, 32, {"overlap": "always", "overlaps": True}),
    ],
)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=st.lists(events, min_size=3, max_size=12))
def test_every_sample_comes_once_with_the_tokens_it_has_alone(
    fewest, most, options, script, lm, run, start, make_request, source_of, monkeypatch
):
    monkeypatch.setattr(bursts, "FEWEST", fewest)
    monkeypatch.setattr(bursts, "MOST", most)

    async def live():
        engine = await start(
            lm, eos=(EOS,), slots=8, max_length=MAX_LENGTH, prefill_tokens=200, **options
        )
        alone = await start(lm, eos=(EOS,), decode="stepwise", max_length=MAX_LENGTH)
        life = Life(engine, lm, source_of, make_request)
        for event in script:
            await life.happen(event)
        outcomes = await asyncio.gather(*(task for _, task in life.tasks), return_exceptions=True)
        expected = [await alone.generate(request) for request, _ in life.tasks]
        async with engine._turn:  # of a call that was canceled, a step may be under way
            pass
        assert engine._batch.num_free == 8
        pool = engine._batch._pool
        assert pool.num_free + len(engine._batch._histories) == pool.num_pages - 1
        await engine.close()
        return life, outcomes, expected

    life, outcomes, expected = run(live())

    for number, (outcome, wanted) in enumerate(zip(outcomes, expected, strict=True)):
        if isinstance(outcome, asyncio.CancelledError):
            assert number in life.canceled
            continue
        assert [c.token_ids.tolist() for c in outcome] == [c.token_ids.tolist() for c in wanted]
        assert [c.stop for c in outcome] == [c.stop for c in wanted]
        for completion in outcome:
            versions = completion.weight_version.tolist()
            assert versions == sorted(versions)


def test_samples_of_a_prompt_share_its_full_pages(lm, run, start, make_request):
    async def pages():
        engine = await start(lm, max_length=MAX_LENGTH)
        prompt = (5,) * (PAGE + 3)
        request = make_request(prompt, seeds=tuple(range(4)), max_new_tokens=40)
        task = asyncio.create_task(engine.generate(request))
        await turns(2)
        table = engine._batch._cache.table[:4, :2].tolist()
        await task
        return table

    table = run(pages())

    assert len({first for first, _ in table}) == 1
    assert len({second for _, second in table}) == 4


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3_moe"])
def test_a_later_turn_computes_only_what_is_new(
    family, lm_of, run, start, make_request, monkeypatch
):
    lm = lm_of(family)
    sizes = []
    hidden = type(lm).hidden
    monkeypatch.setattr(
        type(lm),
        "hidden",
        lambda self, ids, *rest: sizes.append(len(ids)) or hidden(self, ids, *rest),
    )
    observation = (9, 8, 7)

    async def turns_of(engine):
        prompt, written = tuple(range(4, 54)), []
        for turn in range(3):
            request = make_request(prompt, seeds=(turn, 7), max_new_tokens=50, number=turn)
            sizes.clear()
            completions = await engine.generate(request)
            written.append((sizes[0], completions))
            prompt += (*completions[0].token_ids.tolist(), *observation)
        return written

    async def both():
        resident = await turns_of(await start(lm, family=family, max_length=300))
        stepwise = await turns_of(await start(lm, family=family, max_length=300, decode="stepwise"))
        return resident, stepwise

    resident, stepwise = run(both())

    # Prompts of 50, 103 and 156 tokens, in multiples of 8; of 102 and 155 that were read a page of 64, and two.
    assert [size for size, _ in resident] == [56, 40, 32]
    for (_, own), (_, other) in zip(resident, stepwise, strict=True):
        for one, two in zip(own, other, strict=True):
            assert one.token_ids.tolist() == two.token_ids.tolist()
            np.testing.assert_allclose(one.logprobs, two.logprobs, atol=2e-5)


def test_an_error_in_a_prefill_loses_no_page(lm, run, start, make_request, monkeypatch):
    async def failing():
        engine = await start(lm, max_length=MAX_LENGTH, slots=2)
        request = make_request((5,) * (PAGE + 3), seeds=(1, 2))
        with monkeypatch.context() as patch:
            patch.setattr(type(lm), "hidden", broken)
            for _ in range(3):  # the pages of two sequences at most are there
                with pytest.raises(
                    RolloutError, match="no memory", check=has_code("engine/request-failed")
                ):
                    await engine.generate(request)
        await engine.generate(request)

    def broken(*_):
        raise RuntimeError("no memory")

    run(failing())


def test_histories_of_other_weights_are_not_used(lm, run, start, make_request, source_of):
    async def updated():
        engine = await start(lm, max_length=MAX_LENGTH)
        request = make_request((5,) * (PAGE + 3))
        await engine.generate(request)
        known = len(engine._batch._histories)
        await engine.update_weights(1, source_of(lm))
        return known, len(engine._batch._histories)

    assert run(updated()) == (1, 0)


def test_a_sequence_that_began_under_other_weights_is_no_history(
    lm, run, start, make_request, source_of, monkeypatch
):
    monkeypatch.setattr(bursts, "FEWEST", 1)
    monkeypatch.setattr(bursts, "MOST", 1)

    async def updated():
        engine = await start(lm, max_length=MAX_LENGTH)
        request = make_request((5,) * (PAGE + 3), max_new_tokens=20)
        task = asyncio.create_task(engine.generate(request))
        await turns(4)
        await engine.pause()
        await engine.update_weights(1, source_of(lm))
        await engine.resume()
        await task
        return len(engine._batch._histories)

    assert run(updated()) == 0


def test_a_stop_string_cuts_a_burst_at_its_token(lm, run, start, make_request, monkeypatch):
    monkeypatch.setattr(bursts, "FEWEST", 50)
    monkeypatch.setattr(bursts, "MOST", 50)
    tokenizer = tiny_tokenizer()

    async def cut():
        engine = await start(lm)
        (free,) = await engine.generate(make_request(PROMPTS[0], max_new_tokens=40))
        stop = tokenizer.decode(free.token_ids)[7:9]
        (cut,) = await engine.generate(make_request(PROMPTS[0], max_new_tokens=40, stop=(stop,)))
        return free, stop, cut

    free, stop, completion = run(cut())
    text = tokenizer.decode(free.token_ids)
    assert tokenizer.decode(completion.token_ids) == text[: text.find(stop) + 2]
