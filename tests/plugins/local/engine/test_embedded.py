"""The engine's life: what it refuses, what it survives, and what waits for what."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Stop
from rlhf_testing.errors import has_code

PROMPT = (5, 6, 7, 8)

pytestmark = pytest.mark.usefixtures("one_token_bursts")


async def turns(n: int) -> None:
    """Let the event loop go round, and so the engine make steps."""
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("changes", "message", "code"),
    [
        ({"prompt": ()}, "prompt is empty", "engine/refused-request"),
        (
            {"prompt": tuple(range(4, 24))},
            "20 tokens, which leaves no room .* max_length of 20",
            "engine/refused-request",
        ),
        ({"prompt": (5, 99999)}, "token id 99999 is outside", "rollout/unknown-token"),
        ({"prompt": (5, -1)}, "token id -1 is outside", "rollout/unknown-token"),
        ({"seeds": ()}, "no seeds", "engine/refused-request"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0", "engine/refused-request"),
        ({"stop": ("",)}, "stop string is empty", "engine/refused-request"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_by_name(
    changes, message, lm, run, start, make_request, code
):
    async def refused():
        engine = await start(lm, max_length=20)
        request = make_request(**{"prompt": PROMPT, "number": 31, **changes})
        with pytest.raises(RolloutError, match=rf"0\.31\.0\.0.*{message}", check=has_code(code)):
            await engine.generate(request)
        (completion,) = await engine.generate(make_request(PROMPT))
        assert len(completion.token_ids) == 12

    run(refused())


def test_an_end_of_sequence_id_outside_of_the_vocabulary_is_refused(lm, run, start):
    with pytest.raises(
        ConfigError, match=r"\[5000\] are outside", check=has_code("model/end-token-unknown")
    ):
        run(start(lm, eos=(2, 5000)))


def test_late_requests_join_a_running_batch(lm, run, start, make_request):
    async def two():
        engine = await start(lm)
        long = asyncio.create_task(engine.generate(make_request(PROMPT, max_new_tokens=100)))
        await turns(10)
        await engine.generate(make_request((9, 10), number=1, max_new_tokens=5))
        assert not long.done()
        return await long

    ((completion),) = run(two())
    assert len(completion.token_ids) == 100


def test_waiting_requests_take_the_slots_that_fall_free(lm, run, start, make_request):
    async def many():
        engine = await start(lm, slots=2)
        requests = [
            make_request(PROMPT, seeds=(n,), number=n, max_new_tokens=3 + n) for n in range(9)
        ]
        return await asyncio.gather(*map(engine.generate, requests))

    completions = run(many())

    assert [len(c.token_ids) for (c,) in completions] == list(range(3, 12))


def test_other_coroutines_run_between_steps(lm, run, start, make_request):
    async def count():
        engine = await start(lm)
        task = asyncio.create_task(engine.generate(make_request(PROMPT, max_new_tokens=50)))
        rounds = 0
        while not task.done():
            rounds += 1
            await asyncio.sleep(0)
        return rounds

    assert run(count()) >= 50


def test_cancelling_frees_the_slots_and_leaves_the_others_alone(lm, run, start, make_request):
    async def cancel():
        engine = await start(lm, slots=4)
        kept = make_request(PROMPT, seeds=(1, 2), number=1, max_new_tokens=40)
        expected = await engine.generate(kept)
        doomed = asyncio.create_task(
            engine.generate(make_request((9, 9, 9), seeds=tuple(range(6)), max_new_tokens=100))
        )
        await turns(4)
        running = asyncio.create_task(engine.generate(kept))
        await turns(8)
        assert not running.done()
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        await turns(60)  # 40 tokens to go; the canceled samples would have held the slots for 100
        assert running.done()
        assert engine._batch.num_free == 4
        return expected, await running

    expected, actual = run(cancel())
    for wanted, got in zip(expected, actual, strict=True):
        assert wanted.token_ids.tolist() == got.token_ids.tolist()
        assert wanted.logprobs.tolist() == got.logprobs.tolist()


def test_an_error_in_the_model_fails_all_requests_by_name_and_the_engine_goes_on(
    lm, run, start, make_request, monkeypatch
):
    async def broken():
        engine = await start(lm)
        with monkeypatch.context() as patch:
            patch.setattr(type(lm), "logits", broken_logits)
            results = await asyncio.gather(
                *(engine.generate(make_request(PROMPT, number=n)) for n in (3, 4)),
                return_exceptions=True,
            )
        (after,) = await engine.generate(make_request(PROMPT))
        return results, after

    def broken_logits(*_):
        raise RuntimeError("no memory")

    results, after = run(broken())

    for number, error in zip((3, 4), results, strict=True):
        assert isinstance(error, RolloutError)
        assert isinstance(error.__cause__, RuntimeError)
        assert f"request 0.{number}.0.0" in str(error)
        assert "0.3.0.0, 0.4.0.0" in str(error)
        assert "no memory" in str(error)
    assert len(after.token_ids) == 12


def test_logits_that_are_not_numbers_fail_their_request(lm, run, start, make_request, monkeypatch):
    poisoned = 77
    embedding = lm.model.get_input_embeddings().weight.detach().clone()
    embedding[poisoned] = torch.nan
    monkeypatch.setattr(
        lm.model.get_input_embeddings(),
        "forward",
        lambda ids: torch.nn.functional.embedding(ids, embedding),
    )

    async def serve():
        engine = await start(lm, slots=2, eos=())
        healthy = make_request((5, 6), number=1, max_new_tokens=40)
        (expected,) = await engine.generate(healthy)
        # Long enough to leave keys that are not numbers behind the next prompt's end.
        bad = make_request((5, 6, 7, poisoned, 8, 9), seeds=(1, 2), number=2)
        error, *after = await asyncio.gather(
            engine.generate(bad),
            engine.generate(healthy),
            engine.generate(healthy),
            return_exceptions=True,
        )
        return expected, error, after

    expected, error, after = run(serve())
    assert isinstance(error, RolloutError)
    assert "request 0.2.0.0: the log-probability of token 1 is not a finite number" in str(error)
    for (completion,) in after:
        assert completion.logprobs.tolist() == expected.logprobs.tolist()


def test_pause_stops_between_tokens_and_resume_goes_on(lm, run, start, make_request):
    request = make_request(PROMPT, max_new_tokens=30)

    async def interrupted():
        engine = await start(lm)
        (expected,) = await engine.generate(request)
        task = asyncio.create_task(engine.generate(request))
        await turns(10)
        await engine.pause()
        late = asyncio.create_task(engine.generate(make_request((9, 8), number=1)))
        await turns(100)
        assert not task.done()
        assert not late.done()
        await engine.resume()
        await late
        return expected, (await task)[0]

    expected, actual = run(interrupted())
    assert actual.token_ids.tolist() == expected.token_ids.tolist()


def test_tokens_carry_the_version_that_sampled_them(lm, run, start, make_request, source_of):
    async def across():
        engine = await start(lm)
        await engine.update_weights(4, source_of(lm))
        task = asyncio.create_task(engine.generate(make_request(PROMPT, max_new_tokens=20)))
        await turns(8)
        await engine.pause()
        await engine.update_weights(5, source_of(lm))
        await engine.update_weights(6, source_of(lm))
        await engine.resume()
        (first,) = await task
        (second,) = await engine.generate(make_request(PROMPT, number=1))
        return first, second

    first, second = run(across())
    versions = first.weight_version.tolist()
    assert versions == sorted(versions)
    assert set(versions) == {4, 6}
    assert set(second.weight_version.tolist()) == {6}


def test_weights_are_not_updated_under_running_requests(lm, run, start, make_request, source_of):
    async def update():
        engine = await start(lm)
        task = asyncio.create_task(engine.generate(make_request(PROMPT, max_new_tokens=40)))
        await turns(5)
        with pytest.raises(
            RolloutError,
            match=r"1 requests run \(0\.0\.0\.0\); call pause first",
            check=has_code("engine/wrong-state"),
        ):
            await engine.update_weights(1, source_of(lm))
        await task

    run(update())


def test_sleep_frees_the_cache_and_wake_serves_the_same_tokens(lm, run, start, make_request):
    async def nap():
        engine = await start(lm)
        before = await engine.generate(make_request(PROMPT))
        cache = engine._batch._cache
        assert cache.keys
        await engine.sleep()
        assert not cache.keys
        with pytest.raises(
            RolloutError,
            match=r"generate for 0\.0\.0\.0: the engine is asleep",
            check=has_code("engine/wrong-state"),
        ):
            await engine.generate(make_request(PROMPT))
        await engine.wake()
        return before, await engine.generate(make_request(PROMPT))

    (before,), (after,) = run(nap())
    assert before.token_ids.tolist() == after.token_ids.tolist()


def test_sleep_is_refused_while_requests_are_in_flight(lm, run, start, make_request):
    async def nap():
        engine = await start(lm)
        task = asyncio.create_task(engine.generate(make_request(PROMPT, number=8)))
        await turns(3)
        with pytest.raises(
            RolloutError, match=r"in flight \(0\.8\.0\.0\)", check=has_code("engine/wrong-state")
        ):
            await engine.sleep()
        await task

    run(nap())


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (["resume"], "resume: the engine is serving; expected it to be paused"),
        (["pause", "pause"], "pause: the engine is paused"),
        (["wake"], "wake: the engine is serving; expected it to be asleep"),
        (["sleep", "sleep"], "sleep: the engine is asleep"),
        (["sleep", "pause"], "pause: the engine is asleep"),
        (["close", "pause"], "pause: the engine is closed"),
        (["close", "checksum"], "checksum: the engine is closed"),
    ],
)
def test_calls_out_of_order_are_refused(calls, message, lm, run, start):
    async def misuse():
        engine = await start(lm)
        for name in calls[:-1]:
            await getattr(engine, name)()
        with pytest.raises(RolloutError, match=message, check=has_code("engine/wrong-state")):
            await getattr(engine, calls[-1])()

    run(misuse())


def test_closing_fails_what_is_in_flight_and_closing_again_is_fine(lm, run, start, make_request):
    async def end():
        engine = await start(lm, slots=1)
        tasks = [
            asyncio.create_task(engine.generate(make_request(PROMPT, number=n, max_new_tokens=100)))
            for n in range(2)
        ]
        await turns(5)
        await engine.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await engine.close()
        with pytest.raises(
            RolloutError, match="the engine is closed", check=has_code("engine/wrong-state")
        ):
            await engine.generate(make_request(PROMPT))
        return results

    for number, error in enumerate(run(end())):
        assert isinstance(error, RolloutError)
        assert f"request 0.{number}.0.0: the engine was closed" in str(error)


def test_the_same_request_object_may_be_in_flight_twice(lm, run, start, make_request):
    async def twice():
        engine = await start(lm)
        request = make_request(PROMPT, seeds=(1, 2))
        return await asyncio.gather(engine.generate(request), engine.generate(request))

    first, second = run(twice())
    for one, other in zip(first, second, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()


def test_a_model_in_training_mode_is_put_into_evaluation_mode(lm, run, start, make_request):
    async def serve():
        engine = await start(lm)
        lm.train()
        await engine.generate(make_request(PROMPT))
        return lm.training

    assert run(serve()) is False


def test_an_engine_outlives_an_event_loop(lm, run, start, make_request):
    engine = run(start(lm))

    first = run(engine.generate(make_request(PROMPT)))
    second = run(engine.generate(make_request(PROMPT)))

    assert first[0].token_ids.tolist() == second[0].token_ids.tolist()
    assert first[0].stop == Stop.LENGTH
