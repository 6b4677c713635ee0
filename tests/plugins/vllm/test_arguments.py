"""What vLLM is started with."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from rlhf_plugin_vllm.arguments import engine_args
from rlhf_plugin_vllm.config import VllmEngineConfig

pytestmark = [pytest.mark.scale, pytest.mark.slow]


@pytest.mark.parametrize(("on_cpu", "kernel"), [(False, "triton"), (True, "auto")])
def test_on_a_gpu_the_kernel_for_experts_is_the_one_that_takes_weights_as_they_are(
    spec, on_cpu, kernel
):
    assert engine_args(spec, VllmEngineConfig(), on_cpu=on_cpu).moe_backend == kernel
