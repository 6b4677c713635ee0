"""Weights from trainer to vLLM on two GPUs: by CUDA IPC on one, by NCCL from one to the other."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.deadlines import until

from rlhf_core import plugins
from rlhf_core.contracts import (
    ComponentRef,
    EngineSpec,
    GenerationRequest,
    RoleSpec,
    RuntimeSpec,
    SamplingParams,
    Uid,
)
from rlhf_testing.tiny import write_tiny_model

torch = pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("vllm")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.scale,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

SPLIT = {"colocate": ("policy", "engine")}
START_S, SOON_S = 900, 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 64, which attention kernels of GPUs know; several buckets of 1 MiB."""
    folder = tmp_path_factory.mktemp("gpu") / "model"
    return write_tiny_model(folder, hidden_size=256, num_layers=4)


@asynccontextmanager
async def placed(
    model: Path, backend: str = "torch", **options: Any
) -> AsyncIterator[SimpleNamespace]:
    from rlhf_plugin_ray.config import RayRuntimeConfig
    from rlhf_plugin_ray.runtime import RayRuntime

    runtime = RayRuntime(RayRuntimeConfig(**{"bucket_mib": 1, "show_output": False, **options}))
    engine = ComponentRef(
        kind="rlhf_engines", name="vllm", options={"compile": False, "kv_cache_gib": 1.0}
    )
    spec = RuntimeSpec(
        roles={"policy": RoleSpec(role="policy", model_path=str(model), dtype="bfloat16")},
        backend=ComponentRef(kind="rlhf_train_backends", name=backend),
        engine=engine,
        engine_spec=EngineSpec(
            model_path=str(model),
            dtype="bfloat16",
            max_length=256,
            max_concurrency=16,
            eos_token_ids=(2,),
        ),
    )
    try:
        async with asyncio.timeout(START_S):
            placement = await runtime.start(spec, plugins.load())
        yield SimpleNamespace(policy=placement.roles["policy"], engine=placement.engine)
    finally:
        await runtime.close()


def routes(run: SimpleNamespace) -> set[tuple[int, str]]:
    return {(link.route.rank, link.route.path) for link in run.engine._delivery.links.standing}


def engine_pids(run: SimpleNamespace) -> list[int]:
    whos = [member.process.who for member in run.engine.crew.members]
    return [int(re.search(r"pid (\d+)", who)[1]) for who in whos]


async def versions_served(run: SimpleNamespace, num: int = 8) -> set[int]:
    requests = [
        GenerationRequest(
            uid=Uid(0, prompt),
            prompt_ids=(5, 6, 7 + prompt),
            seeds=(1, 2),
            sampling=SamplingParams(max_new_tokens=8),
        )
        for prompt in range(num)
    ]
    results = await asyncio.gather(*(run.engine.generate(request) for request in requests))
    return {v for part in results for c in part for v in c.weight_version.tolist()}


async def check_updates(run: SimpleNamespace) -> None:
    for version in (1, 2, 3):
        await run.engine.update_weights(version, run.policy.weights())
        assert await run.engine.checksum() == await run.policy.checksum()
        assert await versions_served(run) == {version}


def test_one_gpu_each_uses_nccl(model):
    async def play():
        async with placed(model, **SPLIT) as run:
            await check_updates(run)
            assert routes(run) == {(0, "collective")}

    asyncio.run(play())


def test_on_one_gpu_memory_is_shared(model):
    async def play():
        async with placed(model, colocate=("policy+engine",)) as run:
            await check_updates(run)
            assert routes(run) == {(0, "memory")}

    asyncio.run(play())


def test_two_ranks_and_two_engines_that_share_gpus_pair_up(model):
    pytest.importorskip("deepspeed")
    options = {"ranks": {"policy": 2}, "engines": 2, "colocate": ("policy+engine",)}

    async def play():
        async with placed(model, backend="deepspeed", **options) as run:
            await check_updates(run)
            assert routes(run) == {(0, "memory"), (1, "memory")}

    asyncio.run(play())


def test_an_engine_killed_in_an_nccl_update_joins_again(model):
    async def play():
        async with placed(model, sync_timeout_s=60.0, **SPLIT) as run:
            await run.engine.update_weights(1, run.policy.weights())
            (dead,) = engine_pids(run)
            os.kill(dead, signal.SIGSTOP)
            update = asyncio.create_task(run.engine.update_weights(2, run.policy.weights()))
            await asyncio.sleep(1.0)
            os.kill(dead, signal.SIGKILL)
            async with asyncio.timeout(SOON_S):
                await update
                await until(lambda: engine_pids(run) not in ([], [dead]))
            assert await run.engine.checksum() == await run.policy.checksum()
            assert await versions_served(run) == {2}

    asyncio.run(play())
