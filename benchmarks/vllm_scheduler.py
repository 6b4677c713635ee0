"""Milliseconds a step of vLLM's own scheduler and of ours, with many running requests that each write one token.

    python benchmarks/vllm_scheduler.py --requests 256 --json scheduler.json

Nothing is computed: the same token comes back for every request, a step after it was asked for, as on a GPU.
``schedule`` decides what the next step is and gives it blocks of the KV cache, ``update`` takes the tokens of the one
before. Of several rounds the fastest counts, which other processes on the machine disturbed least.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from rlhf_core.testing.tiny import write_tiny_model
from rlhf_plugin_vllm.names import PORTION_VARIABLE
from rlhf_plugin_vllm.scheduler import AsyncPortionScheduler

BLOCK, BLOCKS, PROMPT = 16, 40_000, tuple(range(5, 21))
FIRST = 10
"""Steps that are not counted: prompts are computed in them."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ[PORTION_VARIABLE] = "32"
    init_none_hash(sha256)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "model")
        for kind in (AsyncScheduler, AsyncPortionScheduler):
            rounds = [
                milliseconds(scheduler_of(kind, model, arguments), arguments)
                for _ in range(arguments.rounds)
            ]
            schedule, update = min(rounds, key=sum)
            rows.append({"scheduler": kind.__name__, "schedule_ms": schedule, "update_ms": update})
    print(f"{'':24}{'schedule':>10}{'update':>10}   ms a step of {arguments.requests} requests")
    for row in rows:
        print(f"{row['scheduler']:24}{row['schedule_ms']:>10.2f}{row['update_ms']:>10.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def scheduler_of(kind: Any, model: Path, arguments: argparse.Namespace) -> Any:
    """Return a scheduler with all requests waiting and blocks for all their tokens."""
    length = arguments.steps + FIRST + len(PROMPT) + BLOCK
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), dtype="float32", skip_tokenizer_init=True),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=arguments.requests,
            max_num_batched_tokens=arguments.requests * len(PROMPT),
            max_model_len=length,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
    )
    config.scheduler_config.async_scheduling = True  # as on a GPU
    config.cache_config.num_gpu_blocks = BLOCKS
    cache = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], cache)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=False,
    )
    params = SamplingParams(max_tokens=length, ignore_eos=True, detokenize=False)
    for number in range(arguments.requests):
        scheduler.add_request(
            Request(
                request_id=f"request-{number}",
                prompt_token_ids=list(PROMPT),
                sampling_params=params,
                pooling_params=None,
                client_index=0,
                block_hasher=get_request_block_hasher(BLOCK, sha256),
            )
        )
    return scheduler


def milliseconds(scheduler: Any, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return what a step spends in ``schedule`` and in ``update_from_output``."""
    under_way: list[Any] = []
    spent = [0.0, 0.0]
    for step in range(FIRST + arguments.steps):
        if step == FIRST:
            spent = [0.0, 0.0]
        started = time.perf_counter()
        scheduled = scheduler.schedule()
        spent[0] += time.perf_counter() - started
        under_way.append((scheduled, computed(scheduled)))
        if len(under_way) == 2:
            given = under_way.pop(0)
            started = time.perf_counter()
            scheduler.update_from_output(*given)
            spent[1] += time.perf_counter() - started
    assert len(scheduled.num_scheduled_tokens) == arguments.requests
    return spent[0] / arguments.steps * 1e3, spent[1] / arguments.steps * 1e3


def computed(scheduled: Any) -> ModelRunnerOutput:
    names = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


if __name__ == "__main__":
    main()
