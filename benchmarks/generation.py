"""Seconds that one step's generation takes on a GPU: the embedded engine beside vLLM, log-probs and prefill included.

    python benchmarks/generation.py --shape 1.5b --engines embedded vllm
    python benchmarks/generation.py --shape 0.5b --prompts 64 --ragged

Random weights of a published shape, prompts of one length with several samples each. Lengths are forced, or ragged: of
each sample drawn from a log-normal distribution of the given mean, as those of reasoning are early in training.
Each engine runs in a process of its own, one after the other on the same GPU; the first round of each is left out
(compilation and graphs), and of the others the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.contracts import Engine, EngineSpec, GenerationRequest, SamplingParams, Uid

HERE = Path(__file__).parent
MARK = "GENERATION "
EOS = 2
"""Token that ends a sequence, which forced lengths keep from being drawn."""
SPREAD = 0.6
"""Standard deviation of the logarithm of ragged lengths."""


def main() -> None:
    arguments = command_line().parse_args()
    if arguments.only:
        print(MARK + json.dumps(asyncio.run(measured(arguments))))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or Path(folder) / arguments.shape
        if not (model / "config.json").exists():
            code = f"import shapes, pathlib; shapes.write_model({arguments.shape!r}, pathlib.Path({str(model)!r}))"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE)
        results = [in_process_of_its_own(engine, model) for engine in arguments.engines]
    print(table(arguments, results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="1.5b")
    parser.add_argument("--model", type=Path, help="folder of the weights; made if it is not there")
    parser.add_argument("--engines", nargs="+", default=["embedded", "vllm"])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--response-tokens", type=int, default=1024, help="at most, if ragged")
    parser.add_argument("--ragged", action="store_true", help="lengths that differ")
    parser.add_argument("--mean", type=float, default=400.0, help="of ragged lengths, tokens")
    parser.add_argument("--slots", type=int, help="of the embedded engine [default: all samples]")
    parser.add_argument("--rounds", type=int, default=2, help="after one that warms up")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser


def in_process_of_its_own(engine: str, model: Path) -> dict[str, Any]:
    """Return what an engine took, or why it has no figure."""
    command = [sys.executable, __file__, *sys.argv[1:], f"--model={model}", f"--only={engine}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not found:
        return {"engine": engine, "failed": f"ended with {done.returncode}"}
    result: dict[str, Any] = json.loads(found[-1].removeprefix(MARK))
    print(engine, result["seconds"], flush=True)
    return result


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each round of one engine, and the tokens of a round."""
    import torch

    begun = time.perf_counter()
    engine = _engine(arguments)
    await engine.start(engine_spec(arguments, arguments.dtype), _weights(arguments))
    started_s = time.perf_counter() - begun
    seconds, tokens = [], 0
    try:
        for number in range(arguments.rounds + 1):
            asked = list(requests(arguments, number))
            begun = time.perf_counter()
            answers = await asyncio.gather(*map(engine.generate, asked))
            seconds.append(time.perf_counter() - begun)
            tokens = sum(len(one.token_ids) for answer in answers for one in answer)
            assert all(np.isfinite(one.logprobs).all() for answer in answers for one in answer)
    finally:
        await engine.close()
    return {
        "engine": arguments.only,
        "start_s": started_s,
        "seconds": seconds,
        "tokens": tokens,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
    }


def engine_spec(arguments: argparse.Namespace, dtype: str) -> EngineSpec:
    """Return what an engine is told that serves all samples of a round at once."""
    return EngineSpec(
        model_path=str(arguments.model),
        dtype=dtype,
        max_length=arguments.prompt_tokens + arguments.response_tokens,
        max_concurrency=arguments.prompts * arguments.samples,
        eos_token_ids=(EOS,),
    )


def _engine(arguments: argparse.Namespace) -> Engine:
    total = arguments.prompts * arguments.samples
    if arguments.only == "embedded":
        from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
        from rlhf_plugin_local.engine.embedded import EmbeddedEngine

        return EmbeddedEngine(EmbeddedEngineConfig(slots=arguments.slots or total))
    from rlhf_plugin_vllm.config import VllmEngineConfig
    from rlhf_plugin_vllm.engine import VllmEngine

    return VllmEngine(VllmEngineConfig(kv_cache_gib=24.0))


class Weights:
    """The folder's; the embedded engine shares a module that has them."""

    def __init__(self, model: Path, lm: Any) -> None:
        self._model = model
        self._lm = lm

    def module(self) -> Any:
        return self._lm

    def buckets(self) -> Iterator[dict[str, Any]]:
        from safetensors.torch import load_file

        for part in sorted(self._model.glob("*.safetensors")):
            yield load_file(part)


def _weights(arguments: argparse.Namespace) -> Weights:
    if arguments.only != "embedded":
        return Weights(arguments.model, None)
    return Weights(arguments.model, load_lm(arguments.model, arguments.dtype))


def load_lm(model: Path, dtype: str) -> Any:
    """Return the language model of a folder, on the GPU if there is one."""
    import torch

    from rlhf_torch.models.loading import load_causal_lm

    lm = load_causal_lm(str(model), dtype=dtype)
    return lm.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def requests(arguments: argparse.Namespace, number: int) -> Iterator[GenerationRequest]:
    """Yield the requests of a round; those of a prompt are one where all samples have one length."""
    draw = np.random.default_rng(number)
    for place in range(arguments.prompts):
        prompt = tuple(draw.integers(4, 96, arguments.prompt_tokens).tolist())
        seeds = range(place * arguments.samples, (place + 1) * arguments.samples)
        if not arguments.ragged:
            yield _request(place, prompt, tuple(seeds), arguments.response_tokens)
            continue
        for seed in seeds:
            length = draw.lognormal(np.log(arguments.mean) - SPREAD**2 / 2, SPREAD)
            limit = int(np.clip(length, 1, arguments.response_tokens))
            yield _request(seed, prompt, (seed,), limit)


def _request(
    number: int, prompt: tuple[int, ...], seeds: tuple[int, ...], length: int
) -> GenerationRequest:
    return GenerationRequest(
        uid=Uid(0, number),
        prompt_ids=prompt,
        seeds=seeds,
        sampling=SamplingParams(min_new_tokens=length, max_new_tokens=length),
    )


def table(arguments: argparse.Namespace, results: list[dict[str, Any]]) -> str:
    """Return the measurement as lines of text."""
    lengths = f"ragged, mean {arguments.mean:.0f}, at most" if arguments.ragged else "forced,"
    lines = [
        f"{arguments.shape}, {arguments.prompts} x {arguments.samples}, {arguments.prompt_tokens} + "
        f"{arguments.response_tokens} tokens, {lengths} {arguments.response_tokens}; {results[0].get('gpu')}",
        "| engine | seconds | tokens/s | first round | start |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        if "failed" in result:
            lines.append(f"| {result['engine']} | {result['failed']} | | | |")
            continue
        median = statistics.median(result["seconds"][1:])
        lines.append(
            f"| {result['engine']} | {median:.2f} | {result['tokens'] / median:.0f} | "
            f"{result['seconds'][0]:.1f} s | {result['start_s']:.1f} s |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
