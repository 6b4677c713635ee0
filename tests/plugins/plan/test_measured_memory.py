"""Predicted against measured memory: what torch had allocated in the trainer's process at most, on one H200.

Measured 2026-11-22 with torch 2.11.0: those of 256 sequences with ``benchmarks/gpu_step.py`` (and the number of tokens
per micro-batch), the others with the torch backend alone on 32 or 64 sequences of 256 + 1024 tokens.
"""

import pytest

MEASURED = [
    ("qwen2.5-0.5b", 65_536, True, True, 256, 57.5),
    ("qwen2.5-1.5b", 40_960, True, True, 256, 100.4),
    ("qwen2.5-3b", 15_360, True, True, 256, 99.9),
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
