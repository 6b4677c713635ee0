"""A folder in FP8 behind vLLM: it serves the weights that the trainer unpacked, and reads none of the packed ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("vllm")

from tests.quantized_folders import unpacked, write_quantized

from rlhf_core import CapabilityError
from rlhf_plugin_vllm.arguments import engine_args
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.names import UNREAD
from rlhf_testing.errors import has_code
from rlhf_weights import weights_digest

from .test_engine import TOLERANCE, expected_logprobs

pytestmark = [pytest.mark.scale, pytest.mark.slow]

PROMPT = (5, 9, 12)
WIDE = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "tie_word_embeddings": False}
"""vLLM's attention on a CPU takes heads of 32 or more."""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    return write_quantized(tmp_path_factory.mktemp("fp8") / "model", "qwen3", **WIDE)


def test_log_probs_are_those_of_the_unpacked_model(loop, spec, quantized, source_of, make_request):
    plain = unpacked(quantized)
    state = {name: tensor.detach().clone() for name, tensor in plain.state_dict().items()}
    own = replace(spec, model_path=str(quantized), eos_token_ids=(), sleeps=False)
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1))

    async def play():
        await engine.start(own, source_of(state))
        try:
            return await engine.generate(
                make_request(PROMPT, seeds=(1, 2))
            ), await engine.checksum()
        finally:
            await engine.close()

    completions, digest = loop.run_until_complete(play())

    assert digest == weights_digest(state.items())
    for completion in completions:
        expected = expected_logprobs(plain, PROMPT, completion.token_ids)
        found = torch.as_tensor(completion.logprobs)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0.0)


def test_vllm_gets_a_config_without_the_quantization(spec, quantized):
    args = engine_args(replace(spec, model_path=str(quantized)), VllmEngineConfig(), on_cpu=True)

    model = args.create_model_config()
    assert (model.quantization, hasattr(model.hf_config, "quantization_config")) == (None, False)
    assert args.model_loader_extra_config == {UNREAD: True}
    plain = engine_args(spec, VllmEngineConfig(), on_cpu=True)
    assert (plain.hf_overrides, plain.model_loader_extra_config) == ({}, {})


def test_factors_beside_packed_files_are_refused(spec, quantized):
    asked = replace(spec, model_path=str(quantized), adapter_rank=4)

    with pytest.raises(
        CapabilityError,
        match=r"hold quantized weights.*--actor\.lora\.serve merged",
        check=has_code("adapter/not-servable"),
    ):
        engine_args(asked, VllmEngineConfig(), on_cpu=True)
