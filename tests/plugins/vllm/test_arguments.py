"""What vLLM is started with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from rlhf_core import CapabilityError, ConfigError
from rlhf_core.contracts import ComponentRef, VisionSpec
from rlhf_plugin_vllm.arguments import engine_args
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.requests import sampling_params
from rlhf_testing.errors import has_code

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


def test_images_are_processed_by_the_engine_alone(spec):
    eyes = VisionSpec(
        component=ComponentRef(kind="rlhf_vision_models", name="vlm:vlm"), media_folder="media"
    )

    args = engine_args(replace(spec, vision=eyes), VllmEngineConfig(), on_cpu=True)

    assert (args.skip_mm_profiling, args.mm_device_do_normalize) == (True, False)
    assert not engine_args(spec, VllmEngineConfig(), on_cpu=True).skip_mm_profiling


def test_tokens_that_stand_for_images_have_no_probability(spec, make_request):
    params = sampling_params(make_request((5,)), 1, 4, spec, never_sampled=(7, 9))

    assert params.logit_bias == {7: -math.inf, 9: -math.inf}
    assert sampling_params(make_request((5,)), 1, 4, spec).logit_bias is None


def test_a_grammar_is_vllms_and_may_end_an_answer_at_any_place(spec, make_request):
    below = make_request((5,), grammar="start: /a/", min_new_tokens=3)

    params = sampling_params(below, 1, 4, spec, name="0.0-1")
    plain = sampling_params(make_request((5,), min_new_tokens=3), 1, 4, spec, name="0.0-1")

    assert params.structured_outputs.grammar == "start: /a/"
    assert (params.min_tokens, params.extra_args) == (0, {"rlhf_answer": "0.0-1"})
    assert (plain.min_tokens, plain.structured_outputs, plain.extra_args) == (3, None, None)
    args = engine_args(spec, VllmEngineConfig(), on_cpu=True)
    assert args.structured_outputs_config.backend == "guidance"


@pytest.mark.parametrize(("sleeps", "on_cpu"), [(True, False), (True, True), (False, False)])
def test_an_engine_that_will_sleep_is_started_so_that_it_can(spec, sleeps, on_cpu):
    args = engine_args(replace(spec, sleeps=sleeps), VllmEngineConfig(), on_cpu=on_cpu)

    assert args.enable_sleep_mode == (sleeps and not on_cpu)


def test_without_an_adapter_there_is_no_room_for_one(spec):
    assert not engine_args(spec, VllmEngineConfig(), on_cpu=True).enable_lora


def test_the_number_of_versions_may_be_chosen(spec):
    config = VllmEngineConfig(args={"max_loras": 8})
    args = engine_args(replace(spec, adapter_rank=4), config, on_cpu=True)

    assert args.max_loras == 8


def test_float32_is_refused_for_an_adapter_on_a_gpu(spec):
    with pytest.raises(
        ConfigError, match=r"Set --model\.dtype bfloat16", check=has_code("adapter/not-servable")
    ):
        engine_args(replace(spec, adapter_rank=4), VllmEngineConfig(), on_cpu=False)


def test_routes_are_asked_for_on_a_gpu_and_refused_on_a_cpu(spec):
    asked = replace(spec, returns_routes=True)

    assert engine_args(asked, VllmEngineConfig(), on_cpu=False).enable_return_routed_experts
    with pytest.raises(
        CapabilityError,
        match=r"^algo\.correction\.replay_routes: .* needs Triton",
        check=has_code("vllm/no-routes"),
    ):
        engine_args(asked, VllmEngineConfig(), on_cpu=True)
