"""Whether a seed draws the same tokens whoever decodes beside it: the embedded engine with other slots and orders.

    python benchmarks/same_seeds.py --shape 0.5b
    python benchmarks/same_seeds.py --shape 0.5b --dtypes float32 bfloat16
    python benchmarks/same_seeds.py --shape tiny --prompts 4 --response-tokens 32

Random weights of a published shape, ragged lengths, the same requests three times: all samples at once, the same in
reversed order, and with a third of the slots, so that rows wait and meet others. The draws are functions of seed and
place alone. So only logits can differ: by roundings, since the kernels of another number of rows add in another order.

Of each run beside the first it prints how many sequences differ from it; of how many draws that is, up to a sequence's
first difference, behind which nothing is alike; and how far the log-probs of the equal tokens before are apart.
Log-probs are also compared with those of a plain forward pass of the sequence alone, at all tokens, and at the first
token that differs, in both runs: if roundings are all that differs, they are there as close to it as elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from generation import EOS, Weights, engine_spec, load_lm, requests
from numpy.typing import NDArray
from shapes import write_model

from rlhf_core.contracts import Completion, GenerationRequest

Answers = dict[int, Completion]
"""What was sampled, by seed."""


class Run(NamedTuple):
    answers: Answers
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--model", type=Path, help="folder of the weights; made if it is not there")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--response-tokens", type=int, default=512, help="at most")
    parser.add_argument("--mean", type=float, default=200.0, help="of lengths, tokens")
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    arguments = parser.parse_args()
    arguments.ragged = True
    with tempfile.TemporaryDirectory() as folder:
        arguments.model = arguments.model or Path(folder) / arguments.shape
        if not (arguments.model / "config.json").exists():
            write_model(arguments.shape, arguments.model)
        for dtype in arguments.dtypes:
            print(report(arguments, dtype), flush=True)


def report(arguments: argparse.Namespace, dtype: str) -> str:
    """Return a line for the first run, and one for each of the others."""
    lm = load_lm(arguments.model, dtype)
    asked = list(requests(arguments, 0))
    total = len(asked)
    runs = {
        "all at once": sampled(arguments, lm, dtype, asked, total),
        "reversed order": sampled(arguments, lm, dtype, asked[::-1], total),
        "a third of the slots": sampled(arguments, lm, dtype, asked, total // 3),
    }
    at_once = runs["all at once"].answers
    tokens = sum(len(answer.token_ids) for answer in at_once.values())
    lines = [f"{arguments.shape} {dtype}, {total} sequences, {tokens} tokens, on {lm.device}"]
    for name, run in runs.items():
        lines.append(f"  {name}, {run.seconds:.0f} s with the start of the engine:")
        if run.answers is not at_once:
            lines += [f"    {line}" for line in compared(lm, asked, at_once, run.answers)]
        apart = max(
            off_forward(lm, request, run.answers[request.seeds[0]]).max() for request in asked
        )
        lines.append(f"    log-probs are at most {apart:.1e} off a forward pass of one sequence")
    return "\n".join(lines)


def compared(
    lm: Any, asked: Sequence[GenerationRequest], one: Answers, other: Answers
) -> Iterator[str]:
    """Yield how many of the answers and of their draws differ, and how far log-probs are apart before and there."""
    places = {seed: parting(one[seed], other[seed]) for seed in one}
    differ = {seed: place for seed, place in places.items() if place < len(one[seed].token_ids)}
    draws = sum(places.values()) + len(differ)
    apart = max(
        float(np.abs(one[seed].logprobs[:place] - other[seed].logprobs[:place]).max(initial=0.0))
        for seed, place in places.items()
    )
    yield f"{len(differ)} of {len(one)} sequences differ ({len(differ) / len(one):.1%})"
    yield f"{len(differ)} of {draws} draws differ ({len(differ) / draws:.1e})"
    yield f"log-probs before the first difference are at most {apart:.1e} apart"
    if differ:
        there = max(
            off_forward(lm, request, run[request.seeds[0]])[differ[request.seeds[0]]]
            for request in asked
            if request.seeds[0] in differ
            for run in (one, other)
        )
        yield f"first differences come after {', '.join(map(str, sorted(differ.values())))} tokens"
        yield f"log-probs of the tokens that differ are at most {there:.1e} off a forward pass"


def parting(one: Completion, other: Completion) -> int:
    """Return the place of the first token that differs, and the number of tokens where none does."""
    pairs = enumerate(zip(one.token_ids, other.token_ids, strict=True))
    return next((place for place, (a, b) in pairs if a != b), len(one.token_ids))


def off_forward(lm: Any, request: GenerationRequest, answer: Completion) -> NDArray[np.float32]:
    """Return the distances (A,) of the answer's log-probs from those of a forward pass of the sequence alone."""
    import torch

    from rlhf_torch.packed.packing import PackedLayout

    ids = torch.tensor([*request.prompt_ids, *answer.token_ids], device=lm.device)
    layout = PackedLayout([0, len(ids)], ids.device)
    first = len(request.prompt_ids)
    with torch.inference_mode():
        hidden = lm.hidden(ids, layout.positions(), layout)[first - 1 : -1]
        logits = lm.logits(hidden)
        logits[:, EOS] = -torch.inf  # an answer of a forced length could not end
        expected = logits.log_softmax(-1).gather(1, ids[first:, None])[:, 0]
    distances: NDArray[np.float32] = np.abs(expected.cpu().numpy() - answer.logprobs)
    return distances


def sampled(
    arguments: argparse.Namespace,
    lm: Any,
    dtype: str,
    asked: Sequence[GenerationRequest],
    slots: int,
) -> Run:
    """Return what an engine of its own samples of the requests."""
    from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
    from rlhf_plugin_local.engine.embedded import EmbeddedEngine

    async def answered() -> Answers:
        engine = EmbeddedEngine(EmbeddedEngineConfig(slots=slots))
        await engine.start(engine_spec(arguments, dtype), Weights(arguments.model, lm))
        try:
            answers = await asyncio.gather(*map(engine.generate, asked))
        finally:
            await engine.close()
        return {request.seeds[0]: answer[0] for request, answer in zip(asked, answers, strict=True)}

    start = time.perf_counter()
    return Run(asyncio.run(answered()), time.perf_counter() - start)


if __name__ == "__main__":
    main()
