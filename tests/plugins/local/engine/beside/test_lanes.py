"""Generation beside training: in a thread of its own, with the weights of the last update and no others."""

from __future__ import annotations

import asyncio
import copy
import gc
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
from tests.deadlines import HANG_S

from rlhf_core import RolloutError
from rlhf_plugin_local.engine import embedded
from rlhf_plugin_local.engine.beside.lanes import (
    EventLoopLane,
    OwnLane,
    ThreadLane,
    driving,
    lane_of,
)
from rlhf_testing.errors import has_code
from rlhf_weights import weights_digest

PROMPTS = ((5, 6, 7, 8), (9, 10, 11), (12, 13, 14, 15, 16))
BESIDE = {"overlap": "always", "overlaps": True}


@pytest.fixture
def own(lm):
    """A model that the test may train."""
    return copy.deepcopy(lm)


@pytest.fixture(params=["beside training", "on the trainer's weights"])
def threaded(request, monkeypatch):
    """Options of an engine that computes in a thread: with weights of its own, or as on a GPU."""
    if request.param == "beside training":
        return BESIDE
    monkeypatch.setattr(embedded, "lane_of", lambda device, beside: ThreadLane(device))
    return {}


class Trainer:
    """Changes a model's weights in a thread, before and after each step of the engine's batch that it waits for.

    Between two changes the weights are far from any version.
    """

    def __init__(self, lm, engine):
        self._lm = lm
        self._first = copy.deepcopy(lm.model.state_dict())
        self._thread = ThreadPoolExecutor(1)
        self._permits, self._steps = threading.Semaphore(0), threading.Semaphore(0)
        self.threads = set()
        step = engine._batch.step

        def held():
            self.threads.add(threading.current_thread())
            assert self._permits.acquire(timeout=HANG_S)
            finished = step()
            self._steps.release()
            return finished

        engine._batch.step = held

    def hold(self):
        """Let the engine step only as training goes on; one step may be under way."""
        _drain(self._permits)

    async def step(self, steps):
        """Train until the engine has stepped so often, leave weights that are those of nobody before, and let it go."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._train, steps)
        self._permits.release(1_000_000)

    def _train(self, steps):
        _drain(self._steps)
        for _ in range(steps):
            self._change()
            self._permits.release()
            assert self._steps.acquire(timeout=HANG_S), "generation stood still while training ran"
            self._change()

    @torch.no_grad()
    def _change(self):
        for name, tensor in self._lm.model.state_dict().items():
            if tensor.dim() > 1:
                tensor.copy_(self._first[name] * torch.empty_like(tensor).uniform_(-1, 1))

    def close(self):
        self._thread.shutdown()


def _drain(semaphore):
    while semaphore.acquire(blocking=False):
        pass


class Recomputing:
    """Attention of the tokens from a position on; keys and values of those before are those that were computed then."""

    def __init__(self):
        self._seen = {}

    def sequence_lengths(self, at_least):
        return torch.full((1,), at_least)

    def attend(self, layer, query, key, value, *, scaling, sliding_window, softcap):
        """Return (1, N, H, K) for query (1, H, N, K), key and value (1, H_kv, N, K)."""
        assert sliding_window is None
        assert softcap is None
        past = self._seen.get(layer, (key[:, :, :0], value[:, :, :0]))
        keys, values = (torch.cat(pair, dim=2) for pair in zip(past, (key, value), strict=True))
        self._seen[layer] = keys, values
        N, length, groups = query.shape[2], keys.shape[2], query.shape[1] // keys.shape[1]
        scores = query @ keys.repeat_interleave(groups, 1).transpose(-1, -2) * scaling
        ahead = torch.arange(length) > torch.arange(length - N, length)[:, None]
        weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
        return (weights @ values.repeat_interleave(groups, 1)).transpose(1, 2)


@torch.no_grad()
def recomputed(models, prompt, completion):
    """Return the log-prob of each token with the model of the version that it names."""
    tokens = torch.tensor([*prompt, *completion.token_ids])
    # The token at a position is predicted by the pass over the position before, and by that pass's version.
    versions = completion.weight_version
    versions = np.concatenate([np.full(len(prompt) - 1, versions[0]), versions])
    layout, found = Recomputing(), []
    for version, lm in models.items():
        where = torch.tensor(np.flatnonzero(versions == version))
        if len(where):
            logits = lm.logits(lm.hidden(tokens[where], where, layout))
            logprobs = logits.float().log_softmax(-1)
            found.append(logprobs.gather(1, tokens[where + 1][:, None])[:, 0])
    return torch.cat(found)[len(prompt) - 1 :].numpy()


@pytest.mark.parametrize("in_flight", [False, True])
def test_tokens_are_those_of_the_version_that_they_name_while_training_changes_the_weights(
    in_flight, own, run, start, make_request, source_of
):
    models = {0: copy.deepcopy(own)}

    async def steps():
        engine = await start(own, **BESIDE, slots=6)
        trainer = Trainer(own, engine)
        waiting = []
        for version in (1, 2, 3):
            trainer.hold()
            requests = [
                make_request(prompt, seeds=(1, 2, 3), number=number, max_new_tokens=60)
                for number, prompt in enumerate(PROMPTS)
            ]
            waiting += [(one, asyncio.create_task(engine.generate(one))) for one in requests]
            await trainer.step(3)
            if in_flight:
                await engine.pause()
            else:
                await asyncio.gather(*(task for _, task in waiting))
            await engine.update_weights(version, source_of(own))
            models[version] = copy.deepcopy(own)
            assert await engine.checksum() == weights_digest(own.model.state_dict().items())
            if in_flight:
                await engine.resume()
        done = [(one, await task) for one, task in waiting]
        trainer.close()
        await engine.close()
        return done, trainer.threads

    done, threads = run(steps())

    assert len(done) == 3 * len(PROMPTS)
    seen = set()
    for request, completions in done:
        assert len(completions) == 3
        for completion in completions:
            expected = recomputed(models, request.prompt_ids, completion)
            assert completion.logprobs == pytest.approx(expected, abs=1e-5)
            seen |= set(completion.weight_version.tolist())
    assert seen >= {0, 1, 2}
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)


def test_a_checksum_tells_a_copy_from_weights_that_went_on(own, run, start, source_of):
    async def sums():
        engine = await start(own, **BESIDE)
        first = await engine.checksum()
        with torch.no_grad():
            own.model.state_dict()["model.norm.weight"][3] += 0.5
        second = await engine.checksum()
        await engine.update_weights(1, source_of(own))
        return first, second, await engine.checksum()

    before = weights_digest(own.model.state_dict().items())
    first, second, third = run(sums())

    after = weights_digest(own.model.state_dict().items())
    assert (first, second, third) == (before, before, after)


def test_an_engine_beside_training_shares_no_weights(own, run, start):
    async def shares():
        alone, beside = await start(own), await start(own, **BESIDE)
        return alone.shares_weights, beside.shares_weights

    assert run(shares()) == (True, False)


def test_the_event_loop_goes_on_while_tokens_are_computed(lm, run, start, make_request, threaded):
    """The step waits for something that only the event loop does."""
    went_on = threading.Event()

    async def serve():
        engine = await start(lm, **threaded)
        step = engine._batch.step

        def held():
            assert went_on.wait(HANG_S), "the event loop stood still"
            return step()

        engine._batch.step = held
        task = asyncio.create_task(engine.generate(make_request(PROMPTS[0])))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        went_on.set()
        await task
        await engine.close()

    run(serve())


def held_step(engine):
    """Let the engine's next step wait; return the events that say that it waits, and that it may go on."""
    waits, go_on = threading.Event(), threading.Event()
    step = engine._batch.step

    def held():
        waits.set()
        assert go_on.wait(HANG_S)
        return step()

    engine._batch.step = held
    return waits, go_on


async def until(event):
    await asyncio.get_running_loop().run_in_executor(None, event.wait, HANG_S)


def test_what_changes_the_batch_waits_for_the_step_that_is_under_way(
    own, run, start, make_request, source_of, threaded
):
    async def change():
        engine = await start(own, **threaded)
        waits, go_on = held_step(engine)
        kept = asyncio.create_task(engine.generate(make_request(PROMPTS[0], max_new_tokens=40)))
        canceled = asyncio.create_task(engine.generate(make_request(PROMPTS[1], number=1)))
        await until(waits)
        canceled.cancel()
        pausing = asyncio.create_task(engine.pause())
        updating = asyncio.create_task(engine.update_weights(1, source_of(own)))
        for _ in range(20):
            await asyncio.sleep(0)
        early = [pausing.done(), updating.done(), len(engine._batch.active)]
        go_on.set()
        await asyncio.gather(pausing, updating)
        late = len(engine._batch.active)
        await engine.resume()
        await kept
        left = len(engine._batch.active)
        await engine.close()
        return early, late, left

    assert run(change()) == ([False, False, 2], 1, 0)


def test_closing_waits_for_the_step_that_is_under_way_and_leaves_no_thread(
    lm, run, start, make_request, threaded
):
    async def close():
        engine = await start(lm, **threaded)
        waits, go_on = held_step(engine)
        task = asyncio.create_task(engine.generate(make_request(PROMPTS[0])))
        await until(waits)
        threading.Timer(0.05, go_on.set).start()
        await engine.close()
        left = [one.name for one in threading.enumerate() if one.name.startswith("engine")]
        with pytest.raises(
            RolloutError, match="the engine was closed", check=has_code("engine/request-failed")
        ):
            await task
        for _ in range(5):
            await asyncio.sleep(0)
        assert engine._driver.done()
        assert engine._driver.exception() is None
        return left

    assert run(close()) == []


def test_an_error_of_the_thread_is_the_requests_and_the_engine_goes_on(
    lm, run, start, make_request, threaded
):
    async def fail():
        engine = await start(lm, **threaded)
        step = engine._batch.step

        def broken():
            engine._batch.step = step
            raise ValueError("a broken kernel")

        engine._batch.step = broken
        with pytest.raises(
            RolloutError,
            match=r"request 0\.7\.0\.0: .* a broken kernel",
            check=has_code("engine/request-failed"),
        ) as caught:
            await engine.generate(make_request(PROMPTS[0], number=7))
        (after,) = await engine.generate(make_request(PROMPTS[0]))
        await engine.close()
        return caught.value.__cause__, len(after.token_ids)

    cause, count = run(fail())
    assert isinstance(cause, ValueError)
    assert count == 12


@pytest.mark.parametrize("held", [1, 2])
def test_a_step_that_nobody_waits_for_leaves_the_mode_that_training_has_set(
    held, own, run, start, make_request, monkeypatch
):
    """The call was canceled, and training went on at once: dropout would be off in a part of the update."""
    waits, go_on = threading.Event(), threading.Event()

    class Late(ThreadLane):
        calls = 0

        async def call(self, function):
            self.calls += 1

            def late(number=self.calls):
                if number == held:
                    waits.set()
                    assert go_on.wait(HANG_S)
                return function()

            return await super().call(late)

    monkeypatch.setattr(embedded, "lane_of", lambda device, beside: Late(device))

    async def train():
        engine = await start(own)
        task = asyncio.create_task(engine.generate(make_request(PROMPTS[0])))
        await until(waits)
        task.cancel()
        await asyncio.wait([task])
        own.train()
        go_on.set()
        await engine.pause()  # waits for the step
        await engine.close()
        return own.training

    assert run(train())


@pytest.mark.parametrize("decode", ["resident"])
def test_histories_are_erased_in_the_lane_alone(lm_of, run, start, make_request, monkeypatch):
    """Beside training the trainer's stream would erase pages that the engine's stream writes meanwhile."""
    inside, outside = [0], []

    class Watched(EventLoopLane):
        @contextmanager
        def entered(self):
            inside[0] += 1
            yield
            inside[0] -= 1

        taking_over = entered

        async def call(self, function):
            with self.entered():
                return await super().call(function)

    monkeypatch.setattr(embedded, "lane_of", lambda device, beside: Watched())

    async def serve():
        family = "qwen3_5_text"
        engine = await start(lm_of(family), family=family, kv_cache_gib=2**-11, slots=2)
        cache = engine._batch._cache
        erase = cache.erase

        def watched(pages):
            outside.append(not inside[0])
            erase(pages)

        cache.erase = watched
        for number in range(12):
            prompt = tuple(random.Random(number).choices(range(5, 60), k=70))
            await engine.generate(make_request(prompt, number=number, max_new_tokens=3))
        await engine.close()

    run(serve())
    assert outside
    assert not any(outside)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text"])
def test_waves_with_aborts_and_pauses_have_the_tokens_of_calls_that_run_alone(
    family, lm_of, run, start, make_request, source_of, threaded
):
    """Calls come, end and are canceled at any point of a burst; later ones go on from histories of earlier ones."""
    lm, draw = copy.deepcopy(lm_of(family)), random.Random(7)
    options = {"family": family, "slots": 6}
    beginnings = [tuple(draw.choices(range(5, 60), k=66)) for _ in range(3)]
    requests = [
        make_request(
            (*draw.choice(beginnings)[: draw.choice([3, 66])], *draw.choices(range(5, 60), k=4)),
            seeds=tuple(draw.sample(range(1000), k=draw.choice([1, 2, 5]))),
            number=number,
            max_new_tokens=draw.randint(1, 40),
        )
        for number in range(48)
    ]

    async def crowd():
        engine = await start(lm, **threaded, **options)
        tasks = []
        for request in requests:
            tasks.append(asyncio.create_task(engine.generate(request)))
            for _ in range(draw.randint(0, 6)):
                await asyncio.sleep(0)
            if draw.random() < 0.3:
                draw.choice(tasks).cancel()
            if draw.random() < 0.2:
                await engine.pause()
                if draw.random() < 0.5:
                    await engine.update_weights(engine._batch.version + 1, source_of(lm))
                draw.choice(tasks).cancel()
                await engine.resume()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert engine._batch.active == []
        await engine.close()
        return found

    async def alone(some):
        engine = await start(lm, **options, share_prefixes=False)
        found = [await engine.generate(request) for request in some]
        await engine.close()
        return found

    found = run(crowd())
    whole = [
        (request, completions)
        for request, completions in zip(requests, found, strict=True)
        if not isinstance(completions, asyncio.CancelledError)
    ]
    assert 10 < len(whole) < len(requests)
    expected = run(alone([request for request, _ in whole]))
    for (_, completions), others in zip(whole, expected, strict=True):
        for one, other in zip(completions, others, strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize(("error", "is_said"), [(KeyboardInterrupt, False), (ValueError, True)])
def test_an_interrupt_in_work_that_nobody_awaits_is_not_said_twice(caplog, error, is_said):
    """It leaves the loop by itself; asyncio would print its traceback again when the task goes."""

    async def fail():
        raise error("here")

    async def run():
        driving(fail())
        await asyncio.sleep(0.01)

    with suppress(KeyboardInterrupt):
        asyncio.run(run())
    gc.collect()

    assert bool([one for one in caplog.records if one.name == "asyncio"]) is is_said


def test_on_a_gpu_the_event_loop_never_waits_for_a_burst():
    assert type(lane_of(torch.device("cpu"), beside=False)) is EventLoopLane
    assert type(lane_of(torch.device("cuda"), beside=False)) is ThreadLane
    assert type(lane_of(torch.device("cpu"), beside=True)) is OwnLane
