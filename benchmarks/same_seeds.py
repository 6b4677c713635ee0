"""Whether a seed draws the same tokens whoever decodes beside it: the embedded engine with other slots and orders.

    python benchmarks/same_seeds.py --shape 0.5b
    python benchmarks/same_seeds.py --shape tiny --prompts 4 --response-tokens 32 --dtypes float32

Random weights of a published shape, ragged lengths, the same requests three times: all samples at once, the same in
reversed order, and with a third of the slots, so that rows wait and meet others. The draws are functions of seed and
place alone. So only logits can differ: by roundings, since the kernels of another number of rows add in another order.
The share of sequences that differ from the first run is printed, where the first of them leaves it, and how far the
log-probs of the tokens before that are apart; also how far log-probs are from those of a plain forward pass.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from generation import EOS, Weights, engine_spec, load_lm, requests
from shapes import write_model

from rlhf_core.contracts import Completion, GenerationRequest

Answers = dict[int, Completion]
"""What was sampled, by seed."""


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
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
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
    at_once = sampled(arguments, lm, dtype, asked, total)
    few = sampled(arguments, lm, dtype, asked, total // 3)
    others = {
        "reversed order": sampled(arguments, lm, dtype, asked[::-1], total),
        "a third of the slots": few,
    }
    tokens = sum(len(answer.token_ids) for answer in at_once.values())
    lines = [f"{arguments.shape} {dtype}, {total} sequences, {tokens} tokens, on {lm.device}"]
    for name, other in others.items():
        lines.append(f"  {name}: {compared(at_once, other)}")
    for name, answers in {"all at once": at_once, "a third of the slots": few}.items():
        apart = max(off_forward(lm, request, answers[request.seeds[0]]) for request in asked)
        lines.append(
            f"  {name}: log-probs are at most {apart:.1e} off a forward pass of one sequence"
        )
    return "\n".join(lines)


def compared(one: Answers, other: Answers) -> str:
    """Return how many of the answers differ, and by how much the log-probs of equal tokens do."""
    places = {seed: parting(one[seed], other[seed]) for seed in one}
    differ = sorted(place for seed, place in places.items() if place < len(one[seed].token_ids))
    apart = max(
        float(np.abs(one[seed].logprobs[:place] - other[seed].logprobs[:place]).max(initial=0.0))
        for seed, place in places.items()
    )
    first = f", the first after {differ[0]} tokens" if differ else ""
    share = f"{len(differ)} of {len(one)} differ ({len(differ) / len(one):.1%}){first}"
    return f"{share}; log-probs before that by at most {apart:.1e}"


def parting(one: Completion, other: Completion) -> int:
    """Return the place of the first token that differs, and the number of tokens where none does."""
    pairs = enumerate(zip(one.token_ids, other.token_ids, strict=True))
    return next((place for place, (a, b) in pairs if a != b), len(one.token_ids))


def off_forward(lm: Any, request: GenerationRequest, answer: Completion) -> float:
    """Return the largest distance of the answer's log-probs from those of a forward pass of the sequence alone."""
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
    return float(np.abs(expected.cpu().numpy() - answer.logprobs).max(initial=0.0))


def sampled(
    arguments: argparse.Namespace,
    lm: Any,
    dtype: str,
    asked: Sequence[GenerationRequest],
    slots: int,
) -> Answers:
    """Return what an engine of its own samples of the requests."""
    from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
    from rlhf_plugin_local.engine.embedded import EmbeddedEngine

    async def run() -> Answers:
        engine = EmbeddedEngine(EmbeddedEngineConfig(slots=slots))
        await engine.start(engine_spec(arguments, dtype), Weights(arguments.model, lm))
        try:
            answers = await asyncio.gather(*map(engine.generate, asked))
        finally:
            await engine.close()
        return {request.seeds[0]: answer[0] for request, answer in zip(asked, answers, strict=True)}

    return asyncio.run(run())


if __name__ == "__main__":
    main()
