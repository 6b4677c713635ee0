"""Arguments of vLLM as keys of verl."""

from __future__ import annotations

from ...table.entries import Fate, Missing, Nothing, To

_SET_BY_ENGINE = frozenset(
    {
        *("model", "tokenizer", "dtype", "max_model_len", "logprobs_mode", "load_format"),
        *(
            "limit_mm_per_prompt",
            "mm_processor_cache_gb",
            "mm_processor_kwargs",
            "skip_mm_profiling",
        ),
        *("enable_lora", "max_lora_rank", "enable_sleep_mode", "enforce_eager", "stream_interval"),
        *("gpu_memory_utilization", "worker_extension_cls"),
    }
)
"""Arguments of vLLM that the engine sets itself."""


def vllm_argument(name: str) -> Fate:
    """Return what becomes of an argument of vLLM, with dashes or underscores in its name."""
    ours = name.replace("-", "_")
    if ours in _SET_BY_ENGINE:
        return Nothing("the engine sets it from the run's options")
    if "." in ours:
        return Missing("an argument of vLLM that is an object is not taken")
    return To(f"engine.vllm.args.{ours}")
