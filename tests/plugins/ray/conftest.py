"""A small Ray cluster for all tests, and runs on it from start to end."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import (
    ComponentRef,
    EngineSpec,
    GenerationRequest,
    Normalizers,
    PolicyObjective,
    RoleSpec,
    RuntimeSpec,
    SamplingParams,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.plugins import Plugins
from rlhf_core.testing.tiny import write_tiny_model
from rlhf_plugin_ray.config import RayRuntimeConfig

COMPONENTS = Path(__file__).parent / "components"


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Two CPUs and 200 MB of shared memory; the processes of actors find the tests' own plugin."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(COMPONENTS), os.environ.get("PYTHONPATH", "")])
        )
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=200_000_000,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield
        ray.shutdown()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """What is installed, and the tests' own plugin."""
    monkeypatch.syspath_prepend(COMPONENTS)
    monkeypatch.setenv("RLHF_PLUGINS", "ranked_components")
    return plugin_loader.load()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ray") / "model", num_layers=1)


@pytest.fixture
def spec(model: Path) -> Callable[..., RuntimeSpec]:
    """A policy and an engine; further roles by keyword."""

    def make(*, backend: str = "torch", folder: Path = model, **roles: RoleSpec) -> RuntimeSpec:
        policy = RoleSpec(
            role="policy",
            model_path=str(folder),
            objective=PolicyObjective(
                loss=ComponentRef(kind="rlhf_policy_losses", name="gradient"),
                aggregation="token-mean",
            ),
            optimizer=ComponentRef(kind="rlhf_optimizers", name="plain_adamw"),
        )
        return RuntimeSpec(
            roles={"policy": policy, **roles},
            backend=ComponentRef(
                kind="rlhf_train_backends", name=backend, options={"device": "cpu"}
            ),
            engine=ComponentRef(kind="rlhf_engines", name="embedded"),
            engine_spec=EngineSpec(
                model_path=str(folder),
                dtype="float32",
                max_length=256,
                max_concurrency=64,
                eos_token_ids=(2,),
            ),
        )

    return make


@pytest.fixture
def placed(cluster: None, plugins: Plugins) -> Callable[..., Any]:
    """``async with placed(spec, **options) as run``: ``run.roles``, ``run.engine``, ``run.runtime``."""
    from rlhf_plugin_ray.runtime import RayRuntime

    @asynccontextmanager
    async def start(spec: RuntimeSpec, **options: Any) -> AsyncIterator[SimpleNamespace]:
        runtime = RayRuntime(RayRuntimeConfig(**{"close_timeout_s": 3.0, **options}))
        try:
            async with asyncio.timeout(300):
                placement = await runtime.start(spec, plugins)
                yield SimpleNamespace(
                    roles=placement.roles,
                    engine=placement.engine,
                    executor=placement.executor,
                    runtime=runtime,
                )
        finally:
            await runtime.close()

    return start


def pid_of(process: Any) -> int:
    """Of a rank or an engine, from the name that messages call it by."""
    found = re.search(r"pid (\d+)", process.who)
    assert found is not None, process.who
    return int(found[1])


def engine_pids(engine: Any) -> list[int]:
    return [pid_of(server.process) for server in engine.crew.members]


def request(
    prompt: int = 0, *, seeds: tuple[int, ...] = (1, 2, 3), tokens: int = 12
) -> GenerationRequest:
    return GenerationRequest(
        uid=Uid(0, prompt),
        prompt_ids=(5, 6, 7 + prompt),
        seeds=seeds,
        sampling=SamplingParams(max_new_tokens=tokens, min_new_tokens=min(4, tokens)),
    )


async def sample(engine: Any, num_prompts: int = 3) -> TrajectoryColumns:
    """Trajectories of unequal lengths."""
    rows = []
    for prompt in range(num_prompts):
        asked = request(prompt, tokens=4 + 5 * prompt)
        for index, completion in enumerate(await engine.generate(asked)):
            length = len(asked.prompt_ids)
            tokens = np.concatenate([np.array(asked.prompt_ids), completion.token_ids])
            rows.append(
                Trajectory(
                    uid=Uid(0, prompt, index),
                    token_ids=tokens.astype(np.int32),
                    action_mask=np.arange(len(tokens)) >= length,
                    rollout_logprobs=completion.logprobs,
                    weight_version=completion.weight_version,
                    turns=(Turn(start=length, end=len(tokens)),),
                )
            )
    return TrajectoryColumns.from_trajectories(rows)


def update_of(batch: TrajectoryColumns) -> tuple[TrainBatch, StepPlan]:
    """An optimizer step whose advantages differ by action."""
    size = int(batch.num_actions.sum())
    totals = Normalizers(num_actions=size, num_sequences=len(batch), max_actions=24)
    advantages = np.linspace(-1.0, 2.0, size, dtype=np.float32)
    plan = StepPlan(normalizers=totals, on_policy=True, return_logprobs=True)
    return TrainBatch(trajectories=batch, columns={"advantages": advantages}), plan
