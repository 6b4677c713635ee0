"""Predicted against measured memory: what torch had allocated in the trainer's process at most, on one H200.

Measured 2026-11-21 with torch 2.11.0: the first two with ``benchmarks/gpu_step.py --shape SHAPE`` (and the number of
tokens per micro-batch), the others with the torch backend alone on 32 or 64 sequences of 256 + 1024 tokens.
"""

import pytest

MEASURED = [
    ("qwen2.5-0.5b", 65_536, True, 256, 66.9),
    ("qwen2.5-1.5b", 32_768, True, 256, 94.5),
    ("qwen2.5-1.5b", 20_480, True, 32, 72.9),
    ("qwen2.5-1.5b", 40_960, True, 64, 115.1),
    ("qwen2.5-1.5b", 20_480, False, 32, 89.1),
]


@pytest.mark.parametrize(("model", "tokens", "compiled", "sequences", "gib"), MEASURED)
def test_the_peak_is_predicted_within_three_percent(run, model, tokens, compiled, sequences, gib):
    flags = {
        "--train.max_tokens_per_micro_batch": tokens,
        "--backend.torch.compile": str(compiled).lower(),
        "--rollout.batch_size": sequences // 8,
        "--engine.vllm.kv_cache_gib": 8,
        "--prompt-tokens": 256,
        "--response-tokens": 1024,
        "--gpu": "h200",
    }

    _, result = run(*(str(word) for pair in flags.items() for word in pair), model=model)

    trainer = result["gpus"][0]["processes"][0]
    assert trainer["torch_peak_gib"] == pytest.approx(gib, rel=0.03)
