"""Microseconds of CPU that vLLM's client spends on each token, when tokens come to it one by one and in portions.

    python benchmarks/vllm_client.py --portions 1 32 --json

The client is this process, vLLM's side of ``rlhf train``; the model is tiny, so that what counts is what vLLM does for
each running request and token. Time is CPU time, which other processes on the machine hardly change. The first round
warms up; of the others the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rlhf_core.contracts import EngineSpec, GenerationRequest, SamplingParams, Uid
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_testing.tiny import write_tiny_model

PROMPT = tuple(range(5, 21))
SEEDS = 8


class Weights:
    """Those of the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def module(self) -> None:
        return None

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        from safetensors.torch import load_file

        yield load_file(self._folder / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--portions", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--requests", type=int, default=256, help="running at the same time")
    parser.add_argument("--tokens", type=int, default=200, help="of each response")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "model")
        rows = [
            asyncio.run(measured(arguments, model, portion, logprobs))
            for logprobs in (True, False)
            for portion in arguments.portions
        ]
    print(json.dumps(rows) if arguments.json else table(rows))


async def measured(
    arguments: argparse.Namespace, model: Path, portion: int, logprobs: bool
) -> dict[str, Any]:
    spec = EngineSpec(
        model_path=str(model),
        dtype="float32",
        max_length=len(PROMPT) + arguments.tokens,
        max_concurrency=arguments.requests,
        eos_token_ids=(2,),
    )
    engine = VllmEngine(VllmEngineConfig(portion=portion, kv_cache_gib=1.0, threads=1))
    await engine.start(spec, Weights(model))
    seconds = []
    try:
        for _ in range(arguments.rounds + 1):
            started = time.process_time()
            await asyncio.gather(*map(engine.generate, requests(arguments, logprobs)))
            seconds.append(time.process_time() - started)
    finally:
        await engine.close()
    per_token = 1e6 / (arguments.requests * arguments.tokens)
    return {
        "logprobs": logprobs,
        "portion": portion,
        "client_us_per_token": statistics.median(seconds[1:]) * per_token,
    }


def requests(arguments: argparse.Namespace, logprobs: bool) -> Iterator[GenerationRequest]:
    length = arguments.tokens
    for number in range(arguments.requests // SEEDS):
        yield GenerationRequest(
            uid=Uid(0, number),
            prompt_ids=PROMPT,
            seeds=tuple(range(number * SEEDS, (number + 1) * SEEDS)),
            sampling=SamplingParams(
                min_new_tokens=length, max_new_tokens=length, logprobs=logprobs
            ),
        )


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| log-probs | portion | client us a token |", "| --- | ---: | ---: |"]
    lines += [
        f"| {'yes' if row['logprobs'] else 'no'} | {row['portion']} | {row['client_us_per_token']:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
