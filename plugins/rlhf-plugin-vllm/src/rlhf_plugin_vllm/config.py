"""Options of the vLLM engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from rlhf_core import Config
from rlhf_core.capabilities import SERVES_ADAPTERS, SLEEP
from rlhf_core.typed_table import TYPED_TABLE

OURS = {
    "model": "--model.path",
    "tokenizer": "--model.path",
    "trust_remote_code": "--model.trust_remote_code",
    "dtype": "--model.dtype",
    "max_model_len": "--data.max_prompt_tokens and --rollout.max_new_tokens",
    "logprobs_mode": "nothing: training needs the log-probs of the distribution that was sampled from",
    "load_format": "nothing: weights come from the trainer",
    "worker_extension_cls": "nothing: the engine's own extension brings weights to the workers",
    "weight_transfer_config": "nothing: the engine's own transfer brings weights to the workers",
    "stream_interval": "--engine.vllm.portion",
    "quantization": "nothing: the trainer's weights are served as they are",
    "enforce_eager": "--engine.vllm.compile",
    "gpu_memory_utilization": "--engine.vllm.memory_share",
    "kv_cache_memory_bytes": "--engine.vllm.kv_cache_gib",
    "limit_mm_per_prompt": "--data.max_images",
    "mm_device_do_normalize": "nothing: images are processed by the engine, as the trainer processes them",
    "mm_processor_cache_gb": "nothing: images are processed by the engine, as the trainer processes them",
    "mm_processor_kwargs": "the options of --model.vision",
    "skip_mm_profiling": "nothing: images are processed by the engine, as the trainer processes them",
    "enable_lora": "--actor.adapter",
    "max_lora_rank": "nothing: the rank is the adapter's",
    "lora_dtype": "nothing: an adapter is served in the trainer's dtype",
    "lora_target_modules": "nothing: all linear layers are ready for an adapter",
    "enable_sleep_mode": "--runtime.sleep",
}
"""Arguments of vLLM that this engine sets itself, and for each the option to use instead."""


class VllmEngineConfig(Config):
    """Options with which vLLM starts, and options of the weights' way to vLLM."""

    memory_share: float = Field(
        0.45,
        gt=0.0,
        lt=1.0,
        description="share of a GPU's memory for vLLM's weights and KV cache; the rest is for the trainer. Not used on "
        "a CPU, nor if kv_cache_gib is set",
    )
    kv_cache_gib: float | None = Field(
        None,
        gt=0.0,
        le=2048.0,
        description="size of the KV cache, in GiB; unset: on a GPU the part of memory_share that weights leave, on a "
        "CPU 1",
    )
    compile: bool | None = Field(
        None,
        description="torch.compile and CUDA graphs: slower to start, faster to decode; unset: on a GPU only",
    )
    prefix_caching: bool = Field(
        True,
        description="compute a prefix that several prompts share once; new weights empty the cache of prefixes, "
        "and each version of an adapter has its own",
    )
    bucket_mib: int = Field(
        256,
        ge=1,
        le=16384,
        description="size of one bucket of weights, which is copied and handed over at once, in MiB",
    )
    sleep_level: Literal[1, 2] | None = Field(
        None,
        description="weights while the engine sleeps (runtime.sleep): 1 copies them to host memory; 2 drops them, "
        "since an update brings all of them at each wake, which excludes adapters served beside their base. Unset: 2 "
        "if possible, else 1",
    )
    portion: int = Field(
        32,
        ge=1,
        le=4096,
        description="number of a request's tokens that vLLM's core sends in one message; more load vLLM's processes "
        "less, which matters for small models. 1: as vLLM does by default",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads of a worker; unset: one per available core"
    )
    args: Annotated[dict[str, str | int | float | bool | None], TYPED_TABLE] = Field(
        {},
        description="any other argument of vLLM's AsyncEngineArgs by its Python name, such as tensor_parallel_size",
    )

    def needed_by_options(self) -> frozenset[str]:
        """Return the need of a run that may sleep where a level is set."""
        return frozenset({SLEEP}) if self.sleep_level is not None else frozenset()

    def excluded_by_options(self) -> frozenset[str]:
        """Return what an engine cannot do that drops the base's weights, since updates bring factors alone."""
        return frozenset({SERVES_ADAPTERS} if self.sleep_level == 2 else ())

    @field_validator("args")
    @classmethod
    def _not_ours(cls, args: dict[str, object]) -> dict[str, object]:
        for name in args:
            if name in OURS:
                raise ValueError(f"{name} is set by the engine itself; use instead: {OURS[name]}")
        return args
