"""Adapters of several families of models, and of a model in two shards: log-probs and digests."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

pytest.importorskip("vllm")

from rlhf_core import ConfigError, RolloutError
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_weights import weights_digest

from .adapter_material import ATTENTION, LINEAR, RANK, assert_written_by, factors_of

pytestmark = [pytest.mark.scale, pytest.mark.slow]

LIMIT_S = 300
PROMPT = (5, 6, 7, 8)
SEEDS = (1, 2, 3)
EXPERTS = "model.layers.1.mlp.experts"
SHARDS = {"args": {"tensor_parallel_size": 2}}
further = pytest.mark.matrix


@pytest.mark.parametrize(
    ("family", "targets", "dtype", "options"),
    [
        pytest.param("llama", LINEAR, "float32", {}, id="llama", marks=further),
        pytest.param("gemma3", LINEAR, "float32", {}, id="gemma3", marks=further),
        pytest.param("qwen3_moe", ATTENTION, "float32", {}, id="experts"),
        pytest.param("qwen3", LINEAR, "float32", SHARDS, id="shards"),
        pytest.param("qwen3", LINEAR, "bfloat16", SHARDS, id="bfloat16-shards", marks=further),
        pytest.param("qwen3", LINEAR, "float32", {"compile": True}, id="compiled", marks=further),
    ],
)
def test_each_version_is_served_with_the_trainers_digest(
    tmp_path, spec, source_of, make_request, family, targets, dtype, options
):
    from transformers import AutoModelForCausalLM

    folder = write_tiny_model(tmp_path / "model", family, initializer_range=0.3)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def version(seed):
        factors = factors_of(plain, seed, targets=targets)
        return {name: factor.to(getattr(torch, dtype)) for name, factor in factors.items()}

    versions = [version(seed) for seed in range(3)]

    async def play():
        engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1, **options))
        start = replace(spec, model_path=str(folder), dtype=dtype, adapter_rank=RANK)
        async with asyncio.timeout(LIMIT_S):
            await engine.start(start, source_of(versions[0]))
            try:
                digests, answers = [], []
                for number, factors in enumerate(versions):
                    await engine.update_weights(number, source_of(factors))
                    digests.append(await engine.checksum())
                    answers.append(await engine.generate(make_request(PROMPT, seeds=SEEDS)))
                return digests, answers
            finally:
                await engine.close()

    digests, answers = asyncio.run(play())

    assert digests == [weights_digest(factors.items()) for factors in versions]
    if dtype == "float32":  # in bfloat16 the products of engine and Transformers are rounded apart
        for factors, rows in zip(versions, answers, strict=True):
            assert_written_by(plain, factors, PROMPT, rows)


def test_an_adapter_of_experts_is_refused_at_the_start(tmp_path, spec, source_of):
    folder = write_tiny_model(tmp_path / "model", "qwen3_moe", initializer_range=0.3)
    factors = {
        f"{EXPERTS}.0.down_proj.lora_A": torch.ones(RANK, 64),
        f"{EXPERTS}.0.down_proj.lora_B": torch.ones(32, RANK),
    }
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1))
    start = replace(spec, model_path=str(folder), adapter_rank=RANK)

    with pytest.raises(
        RolloutError,
        match=rf"serve an adapter of {EXPERTS}\.0\.down_proj",
        check=has_code("vllm/worker-failed"),
    ):
        asyncio.run(engine.start(start, source_of(factors)))


def test_a_rank_that_vllm_does_not_have_is_refused_before_it_starts(spec, source_of):
    engine = VllmEngine(VllmEngineConfig())

    with pytest.raises(
        ConfigError,
        match="rank is 1000; vLLM serves adapters of at most rank 512",
        check=has_code("adapter/not-servable"),
    ):
        asyncio.run(engine.start(replace(spec, adapter_rank=1000), source_of({})))
