"""Conversations of several turns in the embedded engine: histories that are kept beside histories computed anew.

    python benchmarks/later_turns.py --shape qwen3.5-0.8b
    python benchmarks/later_turns.py --shape 1.5b --prompt-tokens 2048

Random weights of a published shape. All conversations take each turn together: an observation of random tokens behind
what was said, and an answer of a forced length by each of two samples, of which one is gone on from. Both ways start
from the same prompts and draw by the same seeds, in turns, after a round of each that warms up. A line a turn has the
seconds of both ways, fastest of the rounds. Behind them stand the distances of the sampled tokens' log-probs from one
pass of Transformers over each whole conversation in float32: what a wrong history gives away, beside what the same
precision costs without one.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from generation import EOS, Weights, load_lm
from shapes import write_model

from rlhf_core.contracts import EngineSpec, GenerationRequest, SamplingParams, Uid
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine

KEPT, ANEW = "kept", "anew"
FIRST_TOKEN, LAST_TOKEN = 4, 96


@dataclass
class Said:
    """What one way answered in a round."""

    seconds: list[float] = field(default_factory=list)
    """By turn."""
    answers: list[tuple[list[int], list[int], np.ndarray]] = field(default_factory=list)
    """Prompt, tokens and log-probs of each answer, of all turns."""


def main() -> None:
    arguments = command_line().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(arguments.shape, model)
        said = asyncio.run(measured(arguments, model))
        report(arguments, said)
        plain = plain_model(model)
        for way, rounds in said.items():
            gaps = distances(plain, rounds[-1], arguments.compared)
            print(
                f"{way}: {gaps.mean():.4f} nats a token from float32, {gaps.max():.3f} in the worst"
            )


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="qwen3.5-0.8b")
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--observation-tokens", type=int, default=61)
    parser.add_argument("--answer-tokens", type=int, default=67)
    parser.add_argument("--rounds", type=int, default=2, help="after one that warms up")
    parser.add_argument("--compared", type=int, default=64, help="answers, of the last round")
    parser.add_argument("--kv-cache-gib", type=float, default=24.0)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    return parser


async def measured(arguments: argparse.Namespace, model: Path) -> dict[str, list[Said]]:
    """Return what each way said in each round; an engine of each is there all the time."""
    turn_tokens = arguments.observation_tokens + arguments.answer_tokens
    spec = EngineSpec(
        model_path=str(model),
        dtype=arguments.dtype,
        max_length=arguments.prompt_tokens + arguments.turns * turn_tokens,
        max_concurrency=2 * arguments.conversations,
        eos_token_ids=(EOS,),
    )
    weights = Weights(model, load_lm(model, arguments.dtype))
    engines = {}
    for way in (KEPT, ANEW):
        engines[way] = EmbeddedEngine(
            EmbeddedEngineConfig(
                slots=2 * arguments.conversations,
                kv_cache_gib=arguments.kv_cache_gib,
                decode="resident",
                share_prefixes=way == KEPT,
            )
        )
        await engines[way].start(spec, weights)
    said: dict[str, list[Said]] = {way: [] for way in engines}
    for number in range(arguments.rounds + 1):
        for way, engine in engines.items():
            said[way].append(await conversations(arguments, engine, number))
    for engine in engines.values():
        await engine.close()
    return {way: rounds[1:] for way, rounds in said.items()}


async def conversations(arguments: argparse.Namespace, engine: Any, number: int) -> Said:
    """Hold all conversations of a round."""
    draw = np.random.default_rng(number)

    def tokens(count: int) -> list[int]:
        return draw.integers(FIRST_TOKEN, LAST_TOKEN, count).tolist()

    length = arguments.answer_tokens
    prompts = [tokens(arguments.prompt_tokens) for _ in range(arguments.conversations)]
    said = Said()
    for turn in range(arguments.turns):
        asked = [
            GenerationRequest(
                uid=Uid(number, place, turn),
                prompt_ids=tuple(prompt),
                seeds=(2 * turn, 2 * turn + 1),
                sampling=SamplingParams(min_new_tokens=length, max_new_tokens=length),
            )
            for place, prompt in enumerate(prompts)
        ]
        begun = time.perf_counter()
        answers = await asyncio.gather(*map(engine.generate, asked))
        said.seconds.append(time.perf_counter() - begun)
        for place, (prompt, samples) in enumerate(zip(prompts, answers, strict=True)):
            said.answers += [
                (prompt, sample.token_ids.tolist(), sample.logprobs) for sample in samples
            ]
            taken = samples[turn % 2].token_ids.tolist()
            prompts[place] = prompt + taken + tokens(arguments.observation_tokens)
    return said


def report(arguments: argparse.Namespace, said: dict[str, list[Said]]) -> None:
    """Print the seconds of each turn."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(
        f"{arguments.shape}, {arguments.conversations} conversations x 2 samples, prompts of {arguments.prompt_tokens} "
        f"tokens, observations of {arguments.observation_tokens}, answers of {arguments.answer_tokens}; {name}"
    )
    print(f"{'turn':>5} {KEPT:>8} {ANEW:>8}")
    for turn in range(arguments.turns):
        best = {way: min(one.seconds[turn] for one in rounds) for way, rounds in said.items()}
        print(f"{turn + 1:>5} {best[KEPT]:>8.3f} {best[ANEW]:>8.3f}")


def plain_model(model: Path) -> Any:
    """Return Transformers' own model in float32, on the GPU if there is one."""
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).eval()


@torch.no_grad()
def distances(plain: Any, said: Said, count: int) -> np.ndarray:
    """Return how far the log-probs of the last answers are from one pass of the plain model, (tokens,)."""
    gaps = []
    for prompt, answer, logprobs in said.answers[-count:]:
        ids = torch.tensor([[*prompt, *answer]], device=plain.device)
        logits = plain(ids, logits_to_keep=len(answer) + 1).logits[0, :-1]
        logits[:, EOS] = -torch.inf  # as the engine draws where a length is forced
        own = logits.log_softmax(-1).gather(1, ids[0, -len(answer) :, None])[:, 0]
        gaps.append(np.abs(own.cpu().numpy() - logprobs))
    return np.concatenate(gaps)


if __name__ == "__main__":
    main()
