"""An engine whose workers hold shards or stages of the model: weights, their digest, and what it says."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

pytest.importorskip("vllm")

from tests.plugins.vllm.listening import require_no_answer

from rlhf_core.contracts import GenerationRequest, SamplingParams, Uid
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_testing.tiny import write_tiny_model
from rlhf_weights import weights_digest

pytestmark = [pytest.mark.scale, pytest.mark.slow]

LIMIT_S = 300


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="untied", marks=pytest.mark.matrix),
        pytest.param(True, id="tied"),
    ],
)
def model(request, tmp_path_factory):
    """A folder and the model as Transformers runs it."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("parallel") / "model"
    write_tiny_model(folder, initializer_range=0.3, tied=request.param)
    return folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


PROMPT = (5, 6, 7, 8)
CHANGED = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def served(model, spec, source_of):
    """Starts an engine of two workers, updates its weights once; returns answers, digests, and what these should be."""
    folder, plain = model
    state = {name: tensor.detach().clone() for name, tensor in plain.state_dict().items()}
    changed = state | {CHANGED: state[CHANGED] + 0.01}
    request = GenerationRequest(
        uid=Uid(0, 0),
        prompt_ids=PROMPT,
        seeds=(1, 2, 3),
        sampling=SamplingParams(max_new_tokens=12),
    )

    async def play(size, generates):
        args = {size: 2}
        engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1, args=args))
        async with asyncio.timeout(LIMIT_S):
            await engine.start(replace(spec, model_path=str(folder)), source_of(state))
            try:
                require_no_answer()
                digests = [await engine.checksum()]
                answers = await engine.generate(request) if generates else []
                await engine.update_weights(1, source_of(changed))
                return answers, [*digests, await engine.checksum()]
            finally:
                await engine.close()

    def run(size, *, generates=True):
        expected = [weights_digest(weights.items()) for weights in (state, changed)]
        return *asyncio.run(play(size, generates)), expected

    return run


def test_two_shards_serve_the_weights_that_they_were_given(model, served):
    answers, digests, expected = served("tensor_parallel_size")

    assert digests == expected
    for answer in answers:
        tokens = torch.tensor([[*PROMPT, *answer.token_ids.tolist()]])
        with torch.no_grad():
            logprobs = model[1](tokens).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
        taken = logprobs.gather(1, tokens[0, len(PROMPT) :, None])[:, 0]
        torch.testing.assert_close(torch.from_numpy(answer.logprobs), taken, atol=1e-4, rtol=0)


def test_two_stages_hold_the_weights_that_they_were_given(served):
    """vLLM's build for CPUs does not compute in stages."""
    _, digests, expected = served("pipeline_parallel_size", generates=False)

    assert digests == expected
