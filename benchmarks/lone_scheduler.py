"""vLLM's schedulers without its core and workers, which is for the caller to stand in for.

``vllm_scheduler.py`` times them, and tests compare them. vLLM is imported where it is used, since its modules warn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCK = 16
"""Tokens of a block of the KV cache."""


def lone_scheduler(
    kind: Any,
    model: Path,
    *,
    num_blocks: int,
    max_requests: int,
    max_tokens: int,
    max_length: int,
    in_advance: bool,
) -> Any:
    """Return a scheduler of vLLM's.

    Args:
        kind: its class.
        model: a folder, of which only the configuration is read.
        max_tokens: in a step.
        in_advance: prepare each step while the one before is computed. On a CPU vLLM itself would never do so.
    """
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = VllmConfig(
        model_config=ModelConfig(model=str(model), dtype="float32", skip_tokenizer_init=True),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_requests,
            max_num_batched_tokens=max_tokens,
            max_model_len=max_length,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
    )
    config.scheduler_config.async_scheduling = in_advance
    config.cache_config.num_gpu_blocks = num_blocks
    cache = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], cache)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=False,
    )


def add_requests(
    scheduler: Any,
    lengths: Sequence[int],
    prompt: Sequence[int],
    *,
    first: int = 0,
    **params: Any,
) -> None:
    """Add a request for each number of tokens to write, all with one prompt; they are called ``0``, ``1``, ...

    Args:
        first: name of the first one.
        params: further ones of vLLM's ``SamplingParams``.
    """
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    for number, length in enumerate(lengths, first):
        scheduler.add_request(
            Request(
                request_id=str(number),
                prompt_token_ids=list(prompt),
                sampling_params=SamplingParams(
                    **{"max_tokens": length, "ignore_eos": True, "detokenize": False, **params}
                ),
                pooling_params=None,
                client_index=0,
                block_hasher=get_request_block_hasher(BLOCK, sha256),
            )
        )


def computed(scheduled: Any, token: int, logprobs: Any = None) -> Any:
    """Return what a worker would of a step: the same token for every request."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[token] for _ in names],
        logprobs=logprobs,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def token_logprobs(num_requests: int, token: int) -> Any:
    """Return the log-probs of a step in which every request writes the token: its negative."""
    import numpy as np
    from vllm.v1.outputs import LogprobsLists

    tokens = np.full((num_requests, 1), token)
    return LogprobsLists(tokens, -tokens.astype(np.float32), np.ones(num_requests, dtype=int))
