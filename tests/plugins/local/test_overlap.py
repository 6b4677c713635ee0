"""Roles of the local runtime beside an engine that goes on generating."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core import Component, Registered
from rlhf_core.contracts import (
    ComponentRef,
    EngineSpec,
    GenerationRequest,
    RoleSpec,
    RuntimeSpec,
    SamplingParams,
    Uid,
)
from rlhf_core.plugins import empty
from rlhf_plugin_local.config import LocalRuntimeConfig, TorchBackendConfig
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.runtime import LocalRole, LocalRuntime
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.fakes import FakeEngine
from rlhf_testing.tiny import write_tiny_model


class SlowBackend:
    """Computes until the event loop has done something meanwhile."""

    def __init__(self, config=None):
        self.thread = None
        self.free = threading.Event()
        self.closed = False

    def setup(self, spec, plugins): ...

    def logprobs(self, batch):
        self.thread = threading.current_thread()
        assert self.free.wait(HANG_S), "the event loop stood still"
        return np.zeros(1, np.float32)

    def train_step(self, batch, plan):
        self.logprobs(batch)

    def checksum(self):
        self.thread = threading.current_thread()
        return "sum"

    def close(self):
        self.closed = True


def test_a_role_with_a_thread_leaves_the_event_loop_free():
    backend = SlowBackend()

    async def play(thread):
        role = LocalRole(backend, thread)
        computing = asyncio.create_task(role.logprobs(None))
        await asyncio.sleep(0)
        backend.free.set()
        return await computing

    with ThreadPoolExecutor(1) as thread:
        assert asyncio.run(play(thread)).tolist() == [0.0]
    assert backend.thread is not threading.main_thread()


def test_without_a_thread_nothing_runs_beside_a_call():
    backend = SlowBackend()

    assert asyncio.run(LocalRole(backend).checksum()) == "sum"
    assert backend.thread is threading.main_thread()


def test_an_error_comes_out_of_the_thread_as_it_is():
    class Broken(SlowBackend):
        def checksum(self):
            raise ValueError("broken")

    with ThreadPoolExecutor(1) as thread, pytest.raises(ValueError, match="broken"):
        asyncio.run(LocalRole(Broken(), thread).checksum())


@pytest.mark.parametrize("shares_weights", [False, True])
def test_a_call_waits_for_an_update_that_nobody_waits_for_any_more(shares_weights):
    backend = SlowBackend()

    async def play(thread):
        role = LocalRole(backend, thread, shares_weights=shares_weights)
        update = asyncio.create_task(role.train_step(None, None))
        while backend.thread is None:
            await asyncio.sleep(0.01)
        update.cancel()
        asked = asyncio.create_task(role.checksum())
        await asyncio.sleep(0.05)
        assert not asked.done()
        backend.free.set()
        return await asked

    with ThreadPoolExecutor(1) as thread:
        assert asyncio.run(play(thread)) == "sum"


class OwnWeights(FakeEngine):
    def __init__(self, config):
        super().__init__()


class SharedWeights(OwnWeights):
    shares_weights = True


@pytest.fixture
def plugins():
    loaded = empty()
    for hook, name, factory in (
        ("rlhf_train_backends", "slow", SlowBackend),
        ("rlhf_engines", "own", OwnWeights),
        ("rlhf_engines", "shared", SharedWeights),
    ):
        loaded.registries[hook].add(Registered(Component(name=name, factory=factory), "test"))
    return loaded


def spec(engine, **options):
    return RuntimeSpec(
        roles={"policy": RoleSpec(role="policy", model_path="none")},
        backend=ComponentRef(kind="rlhf_train_backends", name="test:slow"),
        engine=ComponentRef(kind="rlhf_engines", name=f"test:{engine}"),
        engine_spec=EngineSpec(
            model_path="none", dtype="float32", max_length=8, max_concurrency=1, eos_token_ids=()
        ),
        **options,
    )


@pytest.mark.parametrize(
    ("engine", "overlaps", "call", "in_a_thread"),
    [
        ("own", True, "checksum", True),
        ("own", False, "checksum", False),
        # Generation is held while they compute, and not while the other calls do.
        ("shared", True, "logprobs", True),
        ("shared", True, "train_step", True),
        ("shared", True, "checksum", False),
        ("shared", False, "logprobs", False),
    ],
)
def test_roles_compute_in_a_thread_where_generation_runs_ahead(
    plugins, engine, overlaps, call, in_a_thread
):
    async def play():
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        placement = await runtime.start(spec(engine, overlaps=overlaps), plugins)
        role = placement.roles["policy"]
        role.weights().free.set()
        try:
            calls = {
                "logprobs": partial(role.logprobs, None),
                "train_step": partial(role.train_step, None, None),
                "checksum": role.checksum,
            }
            await calls[call]()
            return role.weights().thread
        finally:
            await runtime.close()

    thread = asyncio.run(play())
    assert (thread is not threading.main_thread()) == in_a_thread
    assert not thread.is_alive() or thread is threading.main_thread()


def test_closing_waits_for_a_call_that_nobody_waits_for_any_more(plugins):
    async def play():
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        placement = await runtime.start(spec("own", overlaps=True), plugins)
        backend = placement.roles["policy"].weights()
        computing = asyncio.create_task(placement.roles["policy"].logprobs(None))
        while backend.thread is None:
            await asyncio.sleep(0)
        computing.cancel()
        asyncio.get_running_loop().run_in_executor(None, backend.free.set)
        await runtime.close()
        assert backend.closed
        assert not backend.thread.is_alive()

    asyncio.run(play())


class WaitingBackend(TorchBackend):
    """Computes a checksum once the engine has made tokens since it was asked for one."""

    went_on = threading.Event()

    def checksum(self):
        self.went_on.clear()
        assert self.went_on.wait(HANG_S), "generation stood still while a role computed"
        return super().checksum()


class SeenEngine(EmbeddedEngine):
    """Says whenever a step of the batch has ended."""

    async def start(self, spec, source):
        await super().start(spec, source)
        step = self._batch.step

        def seen():
            finished = step()
            WaitingBackend.went_on.set()
            return finished

        self._batch.step = seen


@pytest.mark.parametrize("decode", ["stepwise", "resident"])
def test_the_embedded_engine_generates_while_a_role_computes(decode, plugins, tmp_path):
    model = str(write_tiny_model(tmp_path / "model"))
    config = EmbeddedEngineConfig(overlap="always", decode=decode)
    for hook, name, factory in (
        ("rlhf_train_backends", "waiting", lambda _: WaitingBackend(TorchBackendConfig())),
        ("rlhf_engines", "seen", lambda _: SeenEngine(config)),
    ):
        plugins.registries[hook].add(Registered(Component(name=name, factory=factory), "test"))

    def request(number):
        return GenerationRequest(
            uid=Uid(0, number),
            prompt_ids=(5, 6, 7),
            seeds=(1, 2),
            sampling=SamplingParams(max_new_tokens=40),
        )

    async def play():
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        one = spec("seen", overlaps=True)
        placement = await runtime.start(
            replace(
                one,
                roles={"policy": RoleSpec(role="policy", model_path=model)},
                backend=ComponentRef(kind="rlhf_train_backends", name="test:waiting"),
                engine_spec=replace(
                    one.engine_spec, model_path=model, max_length=64, overlaps=True
                ),
            ),
            plugins,
        )
        try:
            computing = asyncio.create_task(placement.roles["policy"].checksum())
            number = 0
            while not computing.done():
                completions = await placement.engine.generate(request(number))
                assert [len(one.token_ids) for one in completions] == [40, 40]
                number += 1
            return await computing == await placement.engine.checksum()
        finally:
            await runtime.close()

    assert asyncio.run(play())
    left = {one.name for one in threading.enumerate() if one is not threading.main_thread()}
    assert not {name for name in left if name.startswith(("engine", "roles"))}
