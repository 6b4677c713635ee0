"""What is asked of vLLM, in which order, and what is refused; vLLM's client is a stand-in."""

import asyncio
from dataclasses import replace

import pytest

from rlhf_core import ConfigError, RolloutError
from rlhf_core.capabilities import SLEEP
from rlhf_core.contracts import EngineSpec
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.sleeping import VllmSleep, sleep_level
from rlhf_testing.errors import has_code

SPEC = EngineSpec(
    model_path="model", dtype="bfloat16", max_length=8, max_concurrency=1, eos_token_ids=()
)


class Client:
    """Writes down what vLLM is asked for; memory that is back already must not be asked for again."""

    def __init__(self):
        self.calls = []
        self.llm = self

    async def answer(self, call):
        return await call

    async def sleep(self, level):
        self.calls.append(("sleep", level))

    async def wake_up(self, tags):
        self.calls.append(("wake", *tags))

    async def reset_prefix_cache(self):
        self.calls.append(("reset",))


@pytest.fixture
def client():
    return Client()


def do(*steps):
    async def all_of_them():
        for step in steps:
            await step

    asyncio.run(all_of_them())


@pytest.mark.parametrize("level", [1, 2])
def test_an_update_brings_the_weights_memory_back_and_waking_the_rest(client, level):
    sleep = VllmSleep(client, level)

    for _ in range(2):
        do(sleep.fall_asleep(), sleep.take_weights_back())
        sleep.was_updated()
        do(sleep.take_weights_back(), sleep.wake(), sleep.wake())

    assert client.calls == [("sleep", level), ("wake", "weights"), ("wake", "kv_cache")] * 2


def test_at_level_2_nothing_is_served_before_an_update(client):
    sleep = VllmSleep(client, 2)
    do(sleep.fall_asleep())

    for call in ("wake", "checksum"):
        with pytest.raises(
            RolloutError, match=f"{call}: .*level 2", check=has_code("vllm/weights-dropped")
        ):
            sleep.require_weights(call)
    with pytest.raises(RolloutError, check=has_code("vllm/weights-dropped")):
        do(sleep.wake())
    assert client.calls == [("sleep", 2)]


def test_at_level_1_the_weights_come_back_without_an_update(client):
    sleep = VllmSleep(client, 1)

    do(sleep.fall_asleep(), sleep.wake())

    assert client.calls == [("sleep", 1), ("wake", "weights"), ("wake", "kv_cache")]


def test_an_engine_that_was_not_started_for_sleep_keeps_its_memory(client):
    sleep = VllmSleep(client, sleep_level(SPEC, VllmEngineConfig()))

    do(sleep.fall_asleep(), sleep.take_weights_back(), sleep.wake())

    assert client.calls == [("reset",)]


def test_the_level_is_that_of_the_options_and_must_suit_an_adapter():
    sleeps = replace(SPEC, sleeps=True)

    assert sleep_level(sleeps, VllmEngineConfig()) == 2  # each update brings all weights
    assert sleep_level(replace(sleeps, adapter_rank=8), VllmEngineConfig()) == 1
    assert sleep_level(replace(sleeps, quantization={}), VllmEngineConfig()) == 1
    assert sleep_level(sleeps, VllmEngineConfig(sleep_level=1)) == 1
    with pytest.raises(ConfigError, check=has_code("vllm/sleep-level")):
        sleep_level(replace(sleeps, adapter_rank=8), VllmEngineConfig(sleep_level=2))


def test_a_level_in_a_run_that_never_sleeps_is_refused():
    assert VllmEngineConfig(sleep_level=2).needed_by_options() == {SLEEP}
    assert VllmEngineConfig().needed_by_options() == frozenset()


def test_a_level_that_cannot_be_is_refused_before_vllm_starts(monkeypatch):
    from rlhf_plugin_vllm import compat
    from rlhf_plugin_vllm.engine import VllmEngine

    monkeypatch.setattr(compat, "require_vllm", lambda: None)
    started = []
    monkeypatch.setattr(VllmEngine, "_launch", lambda engine, spec: started.append(spec))
    engine = VllmEngine(VllmEngineConfig(sleep_level=2))

    with pytest.raises(ConfigError, match="sleep_level 2", check=has_code("vllm/sleep-level")):
        asyncio.run(engine.start_empty(replace(SPEC, sleeps=True, adapter_rank=8)))

    assert not started
