"""Schedules of whole steps where lengths differ: on-policy, ahead, and with weights that arrive in mid-answer.

    python benchmarks/ragged_steps.py --shape 1.5b --schedule on-policy --steps 4
    python benchmarks/ragged_steps.py --shape 1.5b --schedule in-flight --ahead 8 --steps 14 --limit 480

Lengths are log-normal, as those of reasoning: half of the variance of their logarithm is the prompt's, the other half
the sample's, and each epoch asks the same prompts. An executor of this file, whose samples end where their draw says,
plays them; all else is ``rlhf train`` with random weights of a published shape. Each step is a line as it ends, and a
run that is still going after ``--limit`` seconds is ended. The mean counts, of the steps behind the first and, where
generation runs ahead, behind as many more: how far it has got differs from step to step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from rlhf_core import Component, Config
from rlhf_core.contracts import RolloutContext, Task, Trajectory
from rlhf_plugin_agents.single_turn import SingleTurn

MEAN, SPREAD = "RAGGED_MEAN", "RAGGED_SPREAD"
"""Variables with the mean of the lengths, tokens, and the standard deviation of their logarithm."""
SCHEDULES = ("on-policy", "ahead", "in-flight")
REWARD = "def score(token_ids):\n    return sum(token_ids) % 7 / 7\n"
SHOWN = ("generate_s", "reward_s", "score_s", "train_s", "hold_s", "sync_s")


class Ragged:
    """Single turns that end after a number of tokens drawn for each sample."""

    def __init__(self, config: Config) -> None:
        self._turn = SingleTurn(config)

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return one trajectory per sample."""
        limits = [length(task, context.seed(sample, 0)) for sample in samples]
        cut = [
            replace(context, sampling=replace(context.sampling, max_new_tokens=limit))
            for limit in (min(limit, context.sampling.max_new_tokens) for limit in limits)
        ]
        runs = [self._turn.run(task, [s], each) for s, each in zip(samples, cut, strict=True)]
        return [trajectory for each in await asyncio.gather(*runs) for trajectory in each]


RAGGED = Component(
    name="ragged",
    factory=Ragged,
    summary="single turns of drawn lengths",
)


def length(task: Task, seed: int) -> int:
    """Return the tokens of a sample."""
    spread = float(os.environ[SPREAD])
    of_prompt = np.random.default_rng(list(task.prompt_ids)).normal()
    of_sample = np.random.default_rng(seed).normal()
    middle = math.log(float(os.environ[MEAN])) - spread**2 / 2
    return max(1, round(math.exp(middle + spread * (of_prompt + of_sample) / math.sqrt(2))))


def main() -> None:
    arguments = command_line().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = followed(arguments, Path(folder))
    first = 1 if arguments.schedule == "on-policy" else 1 + arguments.ahead
    counted = rows[first:]
    if counted:
        step = fmean(row["step_s"] for row in counted)
        tokens = fmean(row["tokens"] for row in counted)
        print(
            f"{arguments.shape}, {arguments.schedule}: mean of {len(counted)} steps {step:.2f} s, "
            f"{tokens / step:.0f} tokens/s"
        )
    if arguments.json:
        report = {"command": sys.argv[1:], "steps": rows}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="1.5b")
    parser.add_argument("--models", type=Path, help="where models are kept; a temporary folder")
    parser.add_argument("--schedule", choices=SCHEDULES, default="on-policy")
    parser.add_argument("--ahead", type=int, default=8, help="versions, unless on-policy")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--mean", type=float, default=2000.0, help="of the lengths, tokens")
    parser.add_argument("--spread", type=float, default=1.0, help="of their logarithm")
    parser.add_argument("--most", type=int, default=16384, help="tokens of a response")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--limit", type=float, default=540.0, help="seconds of the whole run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="NAME=VALUE: options of rlhf train")
    return parser


def followed(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run, print each step as it ends, and return what was recorded of all of them."""
    options = run_options(arguments, folder)
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, MEAN: str(arguments.mean), SPREAD: str(arguments.spread)}
    end = time.monotonic() + arguments.limit
    rows: list[dict[str, Any]] = []
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-m", "rlhf_cli", "train", *words],
            stdout=log,
            stderr=log,
            env=environment,
        )
        try:
            while run.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
                show(folder / "run", rows)
        finally:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
                run.wait(60)
    show(folder / "run", rows)
    print((folder / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
    return rows


def run_options(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write model, prompts and reward, and return the options of the run by name."""
    from shapes import write_model

    model = (arguments.models or folder) / arguments.shape
    if not (model / "config.json").exists():
        write_model(arguments.shape, model)
    draw = random.Random(0)
    letters = string.ascii_lowercase
    rows = [
        {"prompt": "".join(draw.choices(letters, k=arguments.prompt_tokens))}
        for _ in range(arguments.prompts)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(REWARD)
    options = {
        "model": model,
        "model.dtype": "float32" if arguments.shape == "tiny" else "bfloat16",
        "data": folder / "data.jsonl",
        "reward": f"{folder}/reward.py:score",
        "output": folder / "run",
        "estimator": "group_norm",
        "engine": "embedded",
        "executor": f"{Path(__file__).resolve()}:RAGGED",
        "rollout.batch_size": arguments.prompts,
        "rollout.n_samples_per_prompt": arguments.samples,
        "rollout.max_new_tokens": arguments.most,
        "data.max_prompt_tokens": arguments.prompt_tokens,
        "actor.adam.lr": 1e-6,
        "steps": arguments.steps,
        "checkpoint.at_end": "false",
        "checkpoint.export": "false",
        "log.progress": "off",
    }
    if arguments.schedule != "on-policy":
        options["rollout.max_staleness"] = arguments.ahead
    if arguments.schedule == "in-flight":
        options["rollout.in_flight_updates"] = "true"
    return options | dict(option.split("=", 1) for option in arguments.options)


def show(run: Path, rows: list[dict[str, Any]]) -> None:
    """Print the steps that have ended since ``rows``, and add them there."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    for record in [line for line in lines if "timing" in line][len(rows) :]:
        timing, metrics = record["timing"], record["metrics"]
        rows.append(
            {
                "step_s": timing["step_s"],
                "tokens": metrics["rollout/tokens"],
                "longest": metrics["response/length_max"],
                "age": metrics.get("rollout/staleness_mean", 0.0),
                "timing": timing,
            }
        )
        seconds = ", ".join(f"{name} {timing.get(name, 0.0):.2f}" for name in SHOWN)
        row = rows[-1]
        print(
            f"step {len(rows)}: {row['step_s']:.2f} s, {row['tokens']:.0f} tokens, longest {row['longest']:.0f}, "
            f"age {row['age']:.2f}; {seconds}",
            flush=True,
        )


if __name__ == "__main__":
    main()
