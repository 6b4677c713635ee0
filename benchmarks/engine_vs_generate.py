"""Tokens per second of the embedded engine and of Transformers ``generate``: same weights, prompts and lengths.

    python benchmarks/engine_vs_generate.py [--models 0.85M,11M] [--batches 64,256] [--json FILE]

Both sample (temperature 1, no truncation) from the whole batch of one call, several responses to each prompt, as a
reinforcement-learning step does (``generate`` repeats the prompts, which is what its ``num_return_sequences`` does).
In mode ``fixed`` every response has the same length; in ``ragged`` prompts and responses differ, ``generate`` gets
left-padded prompts and stops each row at its own length, and only the tokens asked for count. The engine also returns
log-probabilities, ``generate`` does not. The two are timed in turns in one process, after one untimed round, and the
median is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    StoppingCriteria,
    StoppingCriteriaList,
)

from rlhf_core.contracts import EngineSpec, GenerationRequest, SamplingParams, Uid
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import CausalLM

SHAPES = {  # hidden, intermediate, layers, heads, vocabulary
    "0.85M": (128, 384, 4, 4, 512),
    "11M": (384, 1024, 6, 6, 4096),
    "0.5B": (896, 4864, 24, 14, 151936),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts and how many tokens to write after each."""

    prompts: list[list[int]]
    lengths: list[int]

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; speeds in response tokens per second."""

    model: str
    dtype: str
    batch: int
    mode: str
    engine: float
    generate: float

    @property
    def ratio(self) -> float:
        return self.engine / self.generate


class Source:
    """Shares a model with the engine, as a training backend in this process does."""

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm

    def module(self) -> torch.nn.Module:
        return self.lm

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        yield dict(self.lm.model.state_dict())


class OwnLength(StoppingCriteria):
    """Stops each row at its own number of new tokens."""

    def __init__(self, lengths: torch.Tensor, prompt_length: int) -> None:
        self.ends = lengths + prompt_length

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object
    ) -> torch.BoolTensor:
        return self.ends <= input_ids.shape[1]


def workload(mode: str, batch: int, vocab_size: int, options: argparse.Namespace) -> Workload:
    """Random prompts, each repeated; ``ragged`` draws lengths uniformly from an eighth of the maximum up to it."""
    rng = np.random.default_rng(0)

    def lengths(longest: int, count: int) -> list[int]:
        if mode == "fixed":
            return [longest] * count
        return rng.integers(max(1, longest // 8), longest + 1, size=count).tolist()

    sizes = lengths(options.prompt, batch // options.samples)
    prompts = [rng.integers(3, vocab_size, size=size).tolist() for size in sizes]
    repeated = [prompt for prompt in prompts for _ in range(options.samples)]
    return Workload(prompts=repeated, lengths=lengths(options.response, len(repeated)))


def run_generate(model: PreTrainedModel, work: Workload) -> None:
    """One call of ``generate`` on left-padded prompts."""
    longest = max(map(len, work.prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in work.prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in work.prompts])
    lengths = torch.tensor(work.lengths, device=model.device)
    model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        do_sample=True,
        top_k=0,
        max_new_tokens=max(work.lengths),
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([OwnLength(lengths, longest)]),
    )


def engine_runner(
    lm: CausalLM, folder: Path, batch: int, max_length: int
) -> Callable[[Workload], None]:
    """Start an engine and return what sends it a whole workload."""
    engine = EmbeddedEngine(EmbeddedEngineConfig(slots=batch))
    spec = EngineSpec(
        model_path=str(folder),
        dtype="float32",
        max_length=max_length,
        max_concurrency=batch,
        eos_token_ids=(),
    )
    runner = asyncio.Runner()
    runner.run(engine.start(spec, Source(lm)))

    async def send(work: Workload) -> None:
        requests = [
            GenerationRequest(
                uid=Uid(0, number),
                prompt_ids=tuple(prompt),
                seeds=(number,),
                sampling=SamplingParams(max_new_tokens=length),
            )
            for number, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True))
        ]
        completions = await asyncio.gather(*map(engine.generate, requests))
        assert [len(done[0].token_ids) for done in completions] == work.lengths

    return lambda work: runner.run(send(work))


def write_model(name: str, folder: Path) -> None:
    """Write random weights of a shape as a Transformers folder."""
    hidden, intermediate, layers, heads, vocabulary = SHAPES[name]
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=hidden // heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def seconds(action: Callable[[], None]) -> float:
    """Wall time of one call, device included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(name: str, dtype: str, options: argparse.Namespace) -> Iterator[Row]:
    """All batches and modes of one model in one dtype.

    The engine computes as in training, with float32 weights and matmuls in ``dtype``; ``generate`` has weights in
    ``dtype``.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(name, folder)
        lm = load_causal_lm(str(folder), dtype="float32", compute_dtype=dtype).to(device)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).to(device).eval()
        for batch in options.batches:
            max_length = options.prompt + options.response
            run_engine = engine_runner(lm, folder, batch, max_length)
            for mode in ("fixed", "ragged"):
                work = workload(mode, batch, SHAPES[name][4], options)
                times: dict[str, list[float]] = {"engine": [], "generate": []}
                for round_number in range(options.rounds + 1):
                    pair = {
                        "engine": seconds(lambda: run_engine(work)),  # noqa: B023 (called at once)
                        "generate": seconds(lambda: run_generate(model, work)),  # noqa: B023
                    }
                    if round_number:
                        for who, elapsed in pair.items():
                            times[who].append(elapsed)
                speeds = {k: work.num_tokens / statistics.median(v) for k, v in times.items()}
                yield Row(model=name, dtype=dtype, batch=batch, mode=mode, **speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="0.85M,11M", help=", ".join(SHAPES))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--prompt", type=int, default=32, help="longest prompt")
    parser.add_argument("--response", type=int, default=64, help="longest response")
    parser.add_argument("--samples", type=int, default=8, help="responses to each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options = parser.parse_args()
    options.batches = [int(batch) for batch in options.batches.split(",")]
    if options.threads:
        torch.set_num_threads(options.threads)
    rows: list[Row] = []
    print(f"{'model':8}{'dtype':10}{'batch':>6}  {'mode':8}{'engine':>9}{'generate':>10}  ratio")
    for name in options.models.split(","):
        for dtype in options.dtypes.split(","):
            for row in measure(name, dtype, options):
                rows.append(row)
                print(
                    f"{row.model:8}{row.dtype:10}{row.batch:6}  {row.mode:8}"
                    f"{row.engine:9.0f}{row.generate:10.0f}  {row.ratio:.2f}",
                    flush=True,
                )
    if options.json:
        table = [asdict(row) | {"ratio": round(row.ratio, 3)} for row in rows]
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
