"""The embedded engine under an adapter: it samples from the trainer's own model, or from a merged copy."""

import asyncio

import numpy as np
import pytest
import torch
from tests.deadlines import HANG_S
from tests.plugins.lora.conftest import ADAPTERS, base_of
from tests.plugins.torch.conftest import make_batch, make_plan

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import (
    EngineSpec,
    GenerationRequest,
    SamplingParams,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES

PROMPT = (5, 9, 12, 40)
PRECISIONS = [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]
NATS = {"float32": 1e-4, "bfloat16": 0.15}
"""Largest difference of a log-prob, as without an adapter (``tests/plugins/local/engine/test_precisions.py``)."""


def request(number=0, **sampling):
    return GenerationRequest(
        uid=Uid(0, number),
        prompt_ids=PROMPT,
        seeds=(1, 2, 3),
        sampling=SamplingParams(**{"max_new_tokens": 12, **sampling}),
    )


def run(work):
    async def bounded():
        async with asyncio.timeout(HANG_S):
            return await work

    return asyncio.run(bounded())


async def started(backend, rank=None, **options):
    engine = EmbeddedEngine(EmbeddedEngineConfig(**options))
    spec = EngineSpec(
        model_path=backend._spec.model_path,
        dtype=backend._spec.dtype,
        max_length=64,
        max_concurrency=8,
        eos_token_ids=(),
        adapter_rank=rank,
    )
    await engine.start(spec, backend)
    return engine


def rows_of(completions):
    """The completions as rows that a trainer scores."""
    rows = []
    for number, completion in enumerate(completions):
        length = len(PROMPT) + len(completion.token_ids)
        mask = np.arange(length) >= len(PROMPT)
        rows.append(
            Trajectory(
                uid=Uid(0, number),
                token_ids=np.concatenate([PROMPT, completion.token_ids]).astype(np.int32),
                action_mask=mask,
                rollout_logprobs=completion.logprobs,
                weight_version=completion.weight_version,
                turns=(Turn(start=len(PROMPT), end=length),),
                reward=0.0,
            )
        )
    return TrajectoryColumns.from_trajectories(rows)


@pytest.mark.parametrize(("dtype", "compute_dtype"), PRECISIONS)
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_the_trainers(start, spec_of, family, adapter, dtype, compute_dtype):
    backend = start(spec_of(adapter, family, dtype=dtype), compute_dtype=compute_dtype)

    async def generate():
        return await (await started(backend)).generate(request())

    rows = rows_of(run(generate()))

    difference = np.abs(backend.logprobs(rows) - rows.rollout_logprobs)
    assert difference.max() <= NATS[compute_dtype]
    assert np.abs(backend.base_logprobs(rows) - rows.rollout_logprobs).max() > NATS[compute_dtype]


def test_an_adapter_that_goes_on_is_sampled_from_also_after_the_reference_was_asked(
    start,
    spec_of,
    tmp_path,
):
    start(spec_of()).export(tmp_path)
    backend = start(spec_of(options={"init_from": str(tmp_path)}))

    async def generate():
        engine = await started(backend)
        backend.base_logprobs(make_batch().trajectories)
        return await engine.generate(request())

    rows = rows_of(run(generate()))

    assert np.abs(backend.logprobs(rows) - rows.rollout_logprobs).max() <= NATS["float32"]
    assert np.abs(backend.base_logprobs(rows) - rows.rollout_logprobs).max() > NATS["float32"]


@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_precast_weights_give_the_bits_of_autocast(start, spec_of, adapter, monkeypatch):
    from rlhf_plugin_local.engine import weights

    backend, batch = start(spec_of(adapter), compute_dtype="bfloat16"), make_batch()
    found = []

    async def generate():
        engine = await started(backend)
        first = await engine.generate(request())
        backend.base_logprobs(batch.trajectories)
        return first + await engine.generate(request(temperature=0.7))

    found.append(run(generate()))
    monkeypatch.setattr(weights, "_precast", lambda *_, **__: None)
    found.append(run(generate()))

    for cast, plain in zip(*found, strict=True):
        assert cast.token_ids.tolist() == plain.token_ids.tolist()
        assert cast.logprobs.tolist() == plain.logprobs.tolist()


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_update_of_the_adapter_is_served_and_one_under_requests_is_noticed(
    start, spec_of, adapter, compute_dtype
):
    backend, batch = start(spec_of(adapter), compute_dtype=compute_dtype), make_batch()

    async def serve():
        engine = await started(backend)
        first = await engine.generate(request())
        backend.train_step(batch, make_plan(batch))
        await engine.update_weights(1, backend)
        second = await engine.generate(request())
        task = asyncio.create_task(engine.generate(request(max_new_tokens=40)))
        for _ in range(5):
            await asyncio.sleep(0)
        backend.train_step(batch, make_plan(batch))
        with pytest.raises(
            RolloutError,
            match="weights changed under running requests",
            check=has_code("engine/request-failed"),
        ):
            await task
        return first, second, backend

    first, second, _ = run(serve())
    assert [c.logprobs.tolist() for c in first] != [c.logprobs.tolist() for c in second]
    assert {int(version) for c in second for version in c.weight_version} == {1}


def test_asking_for_the_reference_under_running_requests_is_no_change(start, spec_of):
    backend, batch = start(spec_of()), make_batch()

    async def serve():
        engine = await started(backend)
        task = asyncio.create_task(engine.generate(request(max_new_tokens=40)))
        for _ in range(5):
            await asyncio.sleep(0)
        backend.base_logprobs(batch.trajectories)
        interrupted = await task
        return interrupted, await engine.generate(request(max_new_tokens=40))

    interrupted, alone = run(serve())
    assert [c.logprobs.tolist() for c in interrupted] == [c.logprobs.tolist() for c in alone]


@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_a_copy_is_of_the_merged_weights(start, spec_of, adapter):
    options = {"serve": "merged"} if adapter == "lora" else {}
    backend, batch = start(spec_of(adapter, options=options)), make_batch()
    base = base_of(backend)

    async def serve():
        engine = await started(backend, weights="copy")
        backend.train_step(batch, make_plan(batch))
        assert await engine.checksum() != backend.checksum()
        await engine.update_weights(1, backend)
        assert await engine.checksum() == backend.checksum()
        return await engine.generate(request())

    rows = rows_of(run(serve()))

    np.testing.assert_allclose(backend.logprobs(rows), rows.rollout_logprobs, atol=1e-4)
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)


@pytest.mark.parametrize("serve", ["adapter", "merged"])
def test_the_checksum_of_a_shared_engine_is_the_trainers(start, spec_of, serve):
    backend = start(spec_of(options={"serve": serve}))

    async def checksum():
        return await (await started(backend)).checksum()

    assert run(checksum()) == backend.checksum()


def test_factors_beside_a_copy_are_refused_with_the_fix(start, spec_of):
    backend = start(spec_of())

    with pytest.raises(
        ConfigError,
        match=r"--engine\.embedded\.weights shared.*serve merged",
        check=has_code("adapter/not-servable"),
    ):
        run(started(backend, rank=16, weights="copy"))


def test_a_copy_of_a_quantized_policy_is_refused(start, spec_of):
    with pytest.raises(
        ConfigError,
        match=r"--engine\.embedded\.weights shared",
        check=has_code("adapter/not-servable"),
    ):
        run(started(start(spec_of("qlora")), rank=16, weights="copy"))
