"""What vLLM is started with."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from rlhf_core import ConfigError
from rlhf_plugin_vllm.arguments import engine_args
from rlhf_plugin_vllm.config import VllmEngineConfig

pytestmark = [pytest.mark.scale, pytest.mark.slow]


@pytest.mark.parametrize(("on_cpu", "kernel"), [(False, "triton"), (True, "auto")])
def test_on_a_gpu_the_kernel_for_experts_is_the_one_that_takes_weights_as_they_are(
    spec, on_cpu, kernel
):
    assert engine_args(spec, VllmEngineConfig(), on_cpu=on_cpu).moe_backend == kernel


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (3, 8), (16, 16), (200, 256)])
def test_an_adapter_gets_the_smallest_room_that_it_fits_into(spec, rank, room):
    args = engine_args(replace(spec, adapter_rank=rank), VllmEngineConfig(), on_cpu=True)

    assert (args.enable_lora, args.max_lora_rank) == (True, room)
    assert args.max_loras >= 2


def test_without_an_adapter_there_is_no_room_for_one(spec):
    assert not engine_args(spec, VllmEngineConfig(), on_cpu=True).enable_lora


def test_the_number_of_versions_may_be_chosen(spec):
    config = VllmEngineConfig(args={"max_loras": 8})
    args = engine_args(replace(spec, adapter_rank=4), config, on_cpu=True)

    assert args.max_loras == 8


def test_float32_is_refused_for_an_adapter_on_a_gpu(spec):
    with pytest.raises(ConfigError, match=r"Set --model\.dtype bfloat16"):
        engine_args(replace(spec, adapter_rank=4), VllmEngineConfig(), on_cpu=False)
