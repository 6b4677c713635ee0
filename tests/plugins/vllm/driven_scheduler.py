"""vLLM's own schedulers without its workers: a test says what would have been computed."""

from __future__ import annotations

import numpy as np

BLOCK = 16
"""Tokens of a block of the KV cache."""


def real_scheduler(kind, folder, *, in_advance, num_blocks=1000):
    """A scheduler of vLLM's; by default there is room for all requests."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = VllmConfig(
        model_config=ModelConfig(model=str(folder), dtype="float32", skip_tokenizer_init=True),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=512,
            max_model_len=512,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
    )
    # On a CPU vLLM itself would never prepare a step in advance; on a GPU it does.
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


def add_requests(scheduler, lengths, prompt=range(3, 13)):
    """Add a request for each number of tokens to write, all with one prompt."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    for number, length in enumerate(lengths):
        params = SamplingParams(max_tokens=length, ignore_eos=True, detokenize=False, logprobs=0)
        scheduler.add_request(
            Request(
                request_id=str(number),
                prompt_token_ids=list(prompt),
                sampling_params=params,
                pooling_params=None,
                client_index=0,
                block_hasher=get_request_block_hasher(BLOCK, sha256),
            )
        )


def computed(scheduled, token):
    """What a worker would return: the same token for every request, its log-prob the negative of it."""
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    names = list(scheduled.num_scheduled_tokens)
    tokens = [[token] for _ in names]
    logprobs = LogprobsLists(
        np.array(tokens), -np.array(tokens, dtype=np.float32), np.ones(len(names), dtype=int)
    )
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=logprobs if names else None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
