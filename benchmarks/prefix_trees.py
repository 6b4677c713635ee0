"""Seconds of a training step on trees of turns, with each node computed once, and once for each row.

    python benchmarks/prefix_trees.py
    python benchmarks/prefix_trees.py --trees forks --turns 20 --samples 8 --groups 2

Two shapes, both of ``--samples`` episodes with ``--turns`` turns of an observation and an answer after one prompt:

- ``thoughts``: the history shows answers without the thoughts before them (``history = "as_template"``), so every
  turn is a row: prompt, history, thought, answer. Each row forks from the one before it, and all begin with the
  prompt.
- ``forks``: an episode is one row; the samples are a binary tree that forks after 1/2, 7/10 and 17/20 of the turns.

The torch backend alone, as in ``shared_prompts.py``. Beside the ratio of seconds stands that of tokens: those of all
rows over those of the tree.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shapes import SHAPES, TINY, write_model
from shared_prompts import backend_of, fastest

from rlhf_core.contracts import (
    Normalizers,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_torch.rows.prompt_sharing import shared_starts

Tokens = NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default=TINY, choices=[TINY, *SHAPES])
    parser.add_argument("--trees", nargs="+", default=list(TREES), choices=TREES)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--observation", type=int, default=24, help="tokens")
    parser.add_argument("--thought", type=int, default=24, help="tokens; none in forks")
    parser.add_argument("--answer", type=int, default=16, help="tokens")
    parser.add_argument("--micro-batch", type=int, default=4096, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'tree':>10}{'rows':>6}{'each':>10}{'once':>10}{'ratio':>8}{'tokens':>8}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(arguments.shape, model)
        backends = {once: backend_of(model, arguments, once) for once in (False, True)}
        for name in arguments.trees:
            batch, plan = step_of(arguments, name)
            row = measure(arguments, name, batch.trajectories)
            row["each_s"], row["once_s"] = fastest(backends, batch, plan, arguments.rounds)
            row["ratio"] = row["each_s"] / row["once_s"]
            rows.append(row)
            print(
                f"{name:>10}{row['rows']:>6}{row['each_s']:>10.3f}{row['once_s']:>10.3f}{row['ratio']:>8.2f}"
                f"{row['tokens_ratio']:>8.2f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(
    arguments: argparse.Namespace, name: str, trajectories: TrajectoryColumns
) -> dict[str, Any]:
    """Return the shape of a batch of trees."""
    tokens = int(trajectories.num_tokens.sum())
    nodes = tokens - int(shared_starts(trajectories).lengths.sum())
    return {
        "tree": name,
        "turns": arguments.turns,
        "samples": arguments.samples,
        "rows": len(trajectories),
        "longest": int(trajectories.num_tokens.max()),
        "tokens": tokens,
        "nodes": nodes,
        "tokens_ratio": tokens / nodes,
    }


def step_of(arguments: argparse.Namespace, name: str) -> tuple[TrainBatch, StepPlan]:
    """Return groups of one shape with random tokens and advantages."""
    draw = np.random.default_rng(0)
    rows = [
        trajectory
        for group in range(arguments.groups)
        for trajectory in TREES[name](arguments, group, draw)
    ]
    trajectories = TrajectoryColumns.from_trajectories(rows)
    size = int(trajectories.num_actions.sum())
    columns = {"advantages": draw.normal(size=size).astype(np.float32)}
    totals = Normalizers(
        num_actions=size,
        num_sequences=len(rows),
        max_actions=int(trajectories.num_actions.max()),
    )
    batch = TrainBatch(trajectories=trajectories, columns=columns)
    return batch, StepPlan(normalizers=totals, on_policy=True)


def thoughts(
    arguments: argparse.Namespace, group: int, draw: np.random.Generator
) -> list[Trajectory]:
    """Return a row for each turn of each sample: its answer, and the thought before it, are trained."""
    prompt = draw.integers(4, 90, arguments.prompt)
    rows = []
    for sample in range(arguments.samples):
        history = prompt
        for turn in range(arguments.turns):
            history = np.concatenate([history, draw.integers(4, 90, arguments.observation)])
            thought = draw.integers(4, 90, arguments.thought)
            answer = draw.integers(4, 90, arguments.answer)
            spans = [(len(history), len(history) + len(thought) + len(answer))]
            row = np.concatenate([history, thought, answer])
            rows.append(trajectory_of(Uid(0, group, sample, turn), row, spans))
            history = np.concatenate([history, answer])
    return rows


def forks(arguments: argparse.Namespace, group: int, draw: np.random.Generator) -> list[Trajectory]:
    """Return a row for each sample; every sample trains all answers of its path, with advantages of its own."""
    size, prompt = arguments.observation + arguments.answer, arguments.prompt
    forks_at = [arguments.turns * part // 20 for part in (10, 14, 17)]
    paths: list[list[Tokens]] = []
    for sample in range(arguments.samples):
        # Sample 0b101 leaves sample 0b100 at the last fork, sample 0b100 leaves sample 0 at the first one.
        bit = (sample & -sample).bit_length()
        parent = paths[sample & (sample - 1)] if sample else [draw.integers(4, 90, prompt)]
        kept = forks_at[max(0, 3 - bit)] if sample else 0
        fresh = [draw.integers(4, 90, size) for _ in range(arguments.turns - kept)]
        paths.append([*parent[: 1 + kept], *fresh])
    spans = [
        (prompt + turn * size + arguments.observation, prompt + (turn + 1) * size)
        for turn in range(arguments.turns)
    ]
    return [
        trajectory_of(Uid(0, group, sample), np.concatenate(path), spans)
        for sample, path in enumerate(paths)
    ]


def trajectory_of(uid: Uid, tokens: Tokens, spans: list[tuple[int, int]]) -> Trajectory:
    """Return a row whose actions are the given spans."""
    mask = np.zeros(len(tokens), dtype=bool)
    for start, end in spans:
        mask[start:end] = True
    return Trajectory(
        uid=uid,
        token_ids=tokens.astype(np.int32),
        action_mask=mask,
        rollout_logprobs=np.zeros(int(mask.sum()), np.float32),
        weight_version=np.zeros(int(mask.sum()), np.int32),
        turns=tuple(Turn(start=start, end=end) for start, end in spans),
        reward=1.0,
    )


TREES = {"thoughts": thoughts, "forks": forks}


if __name__ == "__main__":
    main()
