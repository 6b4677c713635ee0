"""Keys of the engine that answers: those of vLLM have counterparts, those of others are named."""

from __future__ import annotations

from ...table.entries import Fate, Missing, Nothing, Rule, To
from ...table.kinds import NUMBER, SWITCH, TEXT, WHOLE
from ..common.key_table import Line

_ROLLOUT = "actor_rollout_ref.rollout"
_WIDTH = Rule("engine.vllm.args.tensor_parallel_size", "runtime.ray.gpus_per.engine")
_APART = Missing("engines are not split in this way: there are as many as GPUs", off=(1,))


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


# fmt: off
ENGINE: tuple[Line, ...] = (
    (f"{_ROLLOUT}.name", TEXT, "vllm", Rule("engine.name")),
    (f"{_ROLLOUT}.gpu_memory_utilization", NUMBER, 0.5, Rule("engine.vllm.memory_share")),
    (f"{_ROLLOUT}.tensor_model_parallel_size", WHOLE, 2, _WIDTH),
    (f"{_ROLLOUT}.data_parallel_size", WHOLE, 1, _APART),
    (f"{_ROLLOUT}.expert_parallel_size", WHOLE, 1, _APART),
    (f"{_ROLLOUT}.pipeline_model_parallel_size", WHOLE, 1, _APART),
    (f"{_ROLLOUT}.moe_tensor_parallel_size", WHOLE, 1, _APART),
    (f"{_ROLLOUT}.enforce_eager", SWITCH, False, Rule("engine.vllm.compile")),
    (f"{_ROLLOUT}.enable_prefix_caching", SWITCH, True, Rule("engine.vllm.prefix_caching")),
    (f"{_ROLLOUT}.enable_chunked_prefill", SWITCH, True, Rule("engine.vllm.args.enable_chunked_prefill")),
    (f"{_ROLLOUT}.max_num_seqs", WHOLE, 256, Rule("engine.vllm.args.max_num_seqs")),
    (f"{_ROLLOUT}.max_num_batched_tokens", WHOLE, 8192, Rule("engine.vllm.args.max_num_batched_tokens")),
    (f"{_ROLLOUT}.max_model_len", WHOLE, None, Nothing("the length is that of prompt and response")),
    (f"{_ROLLOUT}.free_cache_engine", SWITCH, True, Rule("runtime.sleep")),
    (f"{_ROLLOUT}.quantization", TEXT, None,
     Missing("the trainer's weights are served as they are, not in 8 bits", off=(None,))),
    (f"{_ROLLOUT}.mode", TEXT, "async", Nothing("engines take requests one by one")),
    (f"{_ROLLOUT}.dtype", TEXT, "bfloat16", Nothing("the engine computes as the trainer does")),
)
# fmt: on
