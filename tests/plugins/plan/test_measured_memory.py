"""Predicted against measured memory: what torch had allocated in the trainer's process at most, on one H200.

Measured 2026-11-22 with torch 2.11.0: those of 256 sequences with ``benchmarks/gpu_step.py`` (and the number of tokens
per micro-batch), the others with the torch backend alone on 32 or 64 sequences of 256 + 1024 tokens. Micro-batches were
then bounded by the sum of their sequences, 65 536, 40 960 and 15 360 tokens in the first three lines; the limits here
give the same micro-batches now that a shared prompt counts once.
"""

import pytest

from rlhf_plugin_lora import rlhf_model_adapters
from rlhf_plugin_plan.machine.hardware import GIB
from rlhf_plugin_plan.memory.role import MicroBatch, Role
from rlhf_plugin_plan.memory.sharing import Sharing
from rlhf_plugin_plan.memory.training_memory import role_memory
from rlhf_plugin_plan.model.activations import Precision
from rlhf_plugin_plan.model.adapters import count

MEASURED = [
    ("qwen2.5-0.5b", 45_824, True, True, 256, 57.5),
    ("qwen2.5-1.5b", 33_792, True, True, 256, 100.4),
    ("qwen2.5-3b", 13_056, True, True, 256, 99.9),
    ("qwen2.5-3b", 15_360, True, False, 256, 105.3),
    ("qwen2.5-1.5b", 20_480, True, False, 32, 70.2),
    ("qwen2.5-1.5b", 40_960, True, False, 64, 109.6),
    ("qwen2.5-1.5b", 20_480, False, False, 32, 86.3),
]


@pytest.mark.parametrize(
    ("model", "tokens", "compiled", "share_prompts", "sequences", "gib"), MEASURED
)
def test_the_peak_is_predicted_within_three_percent(
    run, model, tokens, compiled, share_prompts, sequences, gib
):
    flags = {
        "--train.max_tokens_per_micro_batch": tokens,
        "--backend.torch.compile": str(compiled).lower(),
        "--backend.torch.share_prompts": str(share_prompts).lower(),
        "--rollout.batch_size": sequences // 8,
        "--engine.vllm.kv_cache_gib": 8,
        "--prompt-tokens": 256,
        "--response-tokens": 1024,
        "--gpu": "h200",
    }

    _, result = run(*(str(word) for pair in flags.items() for word in pair), model=model)

    trainer = result["gpus"][0]["processes"][0]
    assert trainer["torch_peak_gib"] == pytest.approx(gib, rel=0.03)


def test_the_peak_of_a_process_that_generates_too(run):
    """``benchmarks/scaling.py --shape 1.5b --modes one -- engine=embedded`` on one of two H200, 2026-11-29: the run
    chose micro-batches of 24 576 tokens, and its process had 87.1 GiB, the embedded engine's cache included."""
    flags = {
        "--engine": "embedded",
        "--train.max_tokens_per_micro_batch": 24_576,
        "--backend.torch.compile": "true",
        "--rollout.batch_size": 32,
        "--rollout.max_new_tokens": 1024,
        "--data.max_prompt_tokens": 256,
        "--prompt-tokens": 256,
        "--response-tokens": 1024,
        "--gpu": "h200",
    }

    _, result = run(*(str(word) for pair in flags.items() for word in pair), model="qwen2.5-1.5b")

    (process,) = result["gpus"][0]["processes"]
    assert process["torch_peak_gib"] == pytest.approx(87.1, rel=0.03)


@pytest.mark.parametrize(("engine", "gib"), [("embedded", 26.5), ("vllm", 23.5)])
def test_the_peak_of_linear_attention_behind_a_tower_that_reads_nothing(run, engine, gib):
    """The run of docs/performance.md#qwen35, on one H200, 2026-11-29: rows of text alone, recomputed layers, plain
    torch, and micro-batches of 32 768 tokens, as the run chose them."""
    flags = {
        "--engine": engine,
        "--model.vision": "vlm",
        "--data.image_key": "",
        "--backend.torch.gradient_checkpointing": "true",
        "--train.max_tokens_per_micro_batch": 32_768,
        "--rollout.batch_size": 16,
        "--rollout.max_new_tokens": 256,
        "--prompt-tokens": 256,
        "--response-tokens": 256,
        "--gpu": "h200",
    }

    words = (str(word) for pair in flags.items() for word in pair)
    _, result = run(*words, model="qwen3.5-0.8b-vision")

    trainer = result["gpus"][0]["processes"][0]
    assert trainer["torch_peak_gib"] == pytest.approx(gib, rel=0.03)


@pytest.mark.parametrize(
    ("model", "name", "gib"), [("qwen2.5-1.5b", "lora", 38.3), ("qwen2.5-7b", "qlora", 77.7)]
)
def test_the_peak_of_supervised_training_beside_a_fixed_base_too(
    shape, config_file, model, name, gib
):
    """``benchmarks/sft_step.py --adapter``, 2026-11-23: rank 16, 16,384 tokens a micro-batch, all of them actions."""
    pytest.importorskip("bitsandbytes")
    (component,) = (each for each in rlhf_model_adapters() if each.name == name)
    precision = Precision(parameters="bfloat16", compute="bfloat16")
    adapter = component.factory(component.config())
    role = Role(
        name="policy",
        shape=shape(model),
        precision=precision,
        trained=True,
        has_head=True,
        scores=False,
        compiled=True,
        adapter=count(adapter, name, config_file(model), precision),
    )

    memory = role_memory(role, Sharing(), MicroBatch(tokens=16_384, actions=16_384, several=True))

    assert memory.peak_bytes / GIB == pytest.approx(gib, rel=0.035)
