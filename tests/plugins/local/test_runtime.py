"""The local runtime: everything built, wired and taken down in one process."""

import asyncio
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import rlhf_plugin_local
from rlhf_core import Component, ConfigError, PluginError, Registered
from rlhf_core.contracts import (
    ComponentRef,
    EngineSpec,
    GenerationRequest,
    PolicyObjective,
    RoleSpec,
    RuntimeSpec,
    SamplingParams,
    StepPlan,
    TokenLoss,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.contracts.backend import Normalizers
from rlhf_core.contracts.optimizer import ParameterGroup
from rlhf_core.plugins import empty
from rlhf_plugin_local.config import LocalRuntimeConfig
from rlhf_plugin_local.runtime import LocalRuntime
from rlhf_testing.errors import has_code


class Gradient:
    def __init__(self, config): ...

    def __call__(self, inputs):
        return TokenLoss(loss=-inputs.advantages * inputs.policy_logprobs)


class AdamW:
    def __init__(self, config): ...

    def parameter_groups(self, named):
        return [ParameterGroup(name="all", named_parameters=tuple(named))]

    def create(self, groups):
        return torch.optim.AdamW(
            [p for group in groups for _, p in group.named_parameters], lr=1e-3
        )


class RecordingEngine:
    """Keeps what was asked of it."""

    def __init__(self, config):
        self.calls = []

    async def start(self, spec, source):
        self.calls.append("start")

    async def generate(self, request):
        return []

    async def update_weights(self, version, source):
        self.calls.append(f"version {version}")

    async def close(self):
        self.calls.append("close")


@pytest.fixture
def plugins():
    loaded = empty()
    for hook in ("rlhf_engines", "rlhf_train_backends", "rlhf_runtimes"):
        for component in getattr(rlhf_plugin_local, hook)():
            loaded.registries[hook].add(Registered(component, "local"))
    for hook, name, factory in (
        ("rlhf_policy_losses", "gradient", Gradient),
        ("rlhf_optimizers", "adamw", AdamW),
        ("rlhf_engines", "recording", RecordingEngine),
    ):
        loaded.registries[hook].add(Registered(Component(name=name, factory=factory), "test"))
    return loaded


def spec_for(folder, *, engine="local:embedded", **roles):
    policy = RoleSpec(
        role="policy",
        model_path=str(folder),
        objective=PolicyObjective(
            loss=ComponentRef(kind="rlhf_policy_losses", name="test:gradient"),
            aggregation="token-mean",
        ),
        optimizer=ComponentRef(kind="rlhf_optimizers", name="test:adamw"),
    )
    return RuntimeSpec(
        roles={"policy": policy, **roles},
        backend=ComponentRef(
            kind="rlhf_train_backends", name="local:torch", options={"device": "cpu"}
        ),
        engine=ComponentRef(kind="rlhf_engines", name=engine),
        engine_spec=EngineSpec(
            model_path=str(folder),
            dtype="float32",
            max_length=64,
            max_concurrency=8,
            eos_token_ids=(2,),
        ),
    )


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_the_trainer_gives_the_samplers_logprobs_before_and_after_an_update(
    plugins, models, family
):
    """Token in, token out: what the engine sampled is scored alike by the trainer, whose weights it shares."""

    async def play():
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        placement = await runtime.start(spec_for(models[family]), plugins)
        policy = placement.roles["policy"]
        try:
            for version in range(2):
                batch = await sample(placement.engine, version)
                scored = await policy.logprobs(batch)
                np.testing.assert_allclose(scored, batch.rollout_logprobs, atol=1e-4)
                assert await policy.checksum() == await placement.engine.checksum()
                assert set(batch.weight_version.tolist()) == {version}
                await policy.train_step(*update(batch))
                await placement.engine.update_weights(version + 1, policy.weights())
        finally:
            await runtime.close()

    asyncio.run(play())


async def sample(engine, version):
    prompt = (5, 6, 7 + version)
    request = GenerationRequest(
        uid=Uid(0, 0),
        prompt_ids=prompt,
        seeds=(1, 2, 3),
        sampling=SamplingParams(max_new_tokens=12),
    )
    rows = []
    for index, completion in enumerate(await engine.generate(request)):
        tokens = np.concatenate([np.array(prompt, dtype=np.int32), completion.token_ids])
        rows.append(
            Trajectory(
                uid=Uid(0, 0, index),
                token_ids=tokens,
                action_mask=np.arange(len(tokens)) >= len(prompt),
                rollout_logprobs=completion.logprobs,
                weight_version=completion.weight_version,
                turns=(Turn(start=len(prompt), end=len(tokens)),),
            )
        )
    return TrajectoryColumns.from_trajectories(rows)


def update(batch):
    size = int(batch.num_actions.sum())
    totals = Normalizers(num_actions=size, num_sequences=len(batch), max_actions=12)
    columns = {"advantages": np.ones(size, dtype=np.float32)}
    return TrainBatch(trajectories=batch, columns=columns), StepPlan(
        normalizers=totals, on_policy=True
    )


def test_every_role_is_built_and_the_engine_gets_its_weights_once(plugins, models):
    async def play():
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        reference = RoleSpec(role="reference", model_path=str(models["qwen3"]))
        placement = await runtime.start(
            spec_for(models["qwen3"], engine="test:recording", reference=reference), plugins
        )
        await runtime.close()
        return placement

    placement = asyncio.run(play())

    assert list(placement.roles) == ["policy", "reference"]
    assert placement.engine.calls == ["start", "close"]


def test_a_failed_start_can_be_closed(plugins, tmp_path):
    async def play():
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        try:
            await runtime.start(spec_for(tmp_path), plugins)
        finally:
            await runtime.close()

    with pytest.raises(ConfigError, match=r"config\.json", check=has_code("model/not-a-folder")):
        asyncio.run(play())


def test_threads_are_set(plugins, models, monkeypatch):
    """By the option, else by the variable that other programs of the machine read, else by the models' size."""

    async def play(threads):
        runtime = LocalRuntime(LocalRuntimeConfig(threads=threads))
        await runtime.start(spec_for(models["qwen3"], engine="test:recording"), plugins)
        await runtime.close()
        return torch.get_num_threads()

    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    try:
        assert asyncio.run(play(1)) == 1
        assert asyncio.run(play(None)) == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert asyncio.run(play(None)) == 1
    finally:
        torch.set_num_threads(before)


def test_registering_the_plugin_imports_no_torch():
    code = (
        "import sys, rlhf_plugin_local as p\n"
        "names = [c.name for h in (p.rlhf_engines, p.rlhf_train_backends, p.rlhf_runtimes) for c in h()]\n"
        "assert names == ['embedded', 'torch', 'local'], names\n"
        "heavy = {'torch', 'transformers', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_factory_can_be_imported():
    for hook in ("rlhf_engines", "rlhf_train_backends", "rlhf_runtimes"):
        for component in getattr(rlhf_plugin_local, hook)():
            assert callable(Registered(component, "local").load())


def test_the_state_of_roles_that_will_move_is_out_when_the_engine_starts(plugins, models):
    """The engine is given weights as it starts, so these are there."""
    seen = []

    class Looking(RecordingEngine):
        async def start(self, spec, source):
            await super().start(spec, source)
            seen.append((source.checksum(), source._state_is_out, source._weights_are_out))

    plugins.registries["rlhf_engines"].add(
        Registered(Component(name="looking", factory=Looking), "test")
    )

    async def play():
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        spec = spec_for(models["qwen3"], engine="test:looking")
        placement = await runtime.start(replace(spec, moving_roles=("policy",)), plugins)
        policy = placement.roles["policy"]
        await policy.offload()
        with pytest.raises(PluginError, check=has_code("training/offloaded")):
            await policy.checksum()
        await policy.reload()
        seen.append(await policy.checksum())
        await runtime.close()

    asyncio.run(play())

    (digest, state_is_out, weights_are_out), after = seen
    assert (state_is_out, weights_are_out) == (True, False)
    assert digest == after
