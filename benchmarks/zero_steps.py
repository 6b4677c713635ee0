"""Seconds of a training step of the DeepSpeed backend alone, with several ranks, in several ways.

    python benchmarks/zero_steps.py --shape 0.5b --ranks 2 --ways stage=3 stage=3,deep_compile --first 6
    python benchmarks/zero_steps.py --shape 1.5b --ranks 2 --ways stage=2,compile stage=2,compile,optim=muon
    python benchmarks/zero_steps.py --shape 7b --ranks 4 --prompts 32 --micro-batch 5120 --ways stage=2,compile --trace
    python benchmarks/zero_steps.py --ranks 2 --lengths 32x64 --micro-batch 512

A way is made of the stage of ZeRO, options of the backend that are switched on or have a number, and the optimizer
(``adam`` unless said). Each has ranks of its own, one after the other: a GPU for each rank if there are any, with
random weights, tokens and advantages, each rank with its part of the rows. The median of the steps after the first
ones counts; beside it stand the seconds of the first steps together, with all compilation, and the most memory that a
rank had. With ``--trace`` the first rank traces one step more, and says where its time goes, by kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gpu_trace
import numpy as np
import torch
from shapes import SHAPES, TINY, write_model
from shared_prompts import batch_of

from rlhf_core.contracts import ComponentRef, PolicyObjective, RoleSpec, TrainBatch
from rlhf_core.plugins import load

WAYS = ("stage=2", "stage=3", "stage=2,optim=muon")
WAIT_S = 570


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default=TINY, choices=[TINY, *SHAPES])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--lengths", default="256x1024", help="prompt x response")
    parser.add_argument("--micro-batch", type=int, default=20480, help="tokens")
    parser.add_argument("--first", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--limit", type=float, default=WAIT_S, help="seconds for each way")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", action="store_true", help="say where the last step's time goes")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        be_rank(arguments)
        return
    rows: dict[str, Any] = {}
    print(f"{'way':>32}{'first steps':>13}{'step':>9}{'tokens/s':>11}{'GiB':>7}{'grad norm':>11}")
    with tempfile.TemporaryDirectory() as folder:
        write_model(arguments.shape, Path(folder) / "model")
        for way in arguments.ways:
            found = measured(arguments, way, Path(folder))
            rows[way] = found
            print(line(way, found), flush=True)
            if "trace" in found:
                print(gpu_trace.table(found["trace"]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def line(way: str, found: dict[str, Any]) -> str:
    """Return a line of the table."""
    if "failed" in found:
        return f"{way:>32}  {found['failed']}"
    return (
        f"{way:>32}{found['first_s']:>13.1f}{found['step_s']:>9.3f}{found['tokens_per_s']:>11.0f}"
        f"{found['gib']:>7.1f}{found['grad_norm']:>11.4g}"
    )


def measured(arguments: argparse.Namespace, way: str, folder: Path) -> dict[str, Any]:
    """Run the ranks of a way and return what the first one found, or why there is nothing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, *sys.argv[1:], "--rank-of", way, "--folder", str(folder)]
    (folder / "found.json").unlink(missing_ok=True)
    ranks = []
    for rank in range(arguments.ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": arguments.ranks}
        place |= {"MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
        # On a CPU the ranks share the cores.
        place["OMP_NUM_THREADS"] = max(1, len(os.sched_getaffinity(0)) // arguments.ranks)
        environment = os.environ | {name: str(value) for name, value in place.items()}
        with (folder / f"log{rank}").open("w") as log:
            ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    end = time.monotonic() + arguments.limit
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        if any(rank.poll() for rank in ranks):
            break
        time.sleep(0.2)
    late = all(rank.poll() is None for rank in ranks)
    for rank in ranks:
        rank.kill()
        rank.wait()
    if (folder / "found.json").exists():
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        return found
    print((folder / "log0").read_text()[-3000:], file=sys.stderr, flush=True)
    return {"failed": f"not done in {arguments.limit:.0f} s" if late else "a rank ended, see above"}


def be_rank(arguments: argparse.Namespace) -> None:
    """Measure as one rank, and let the first one write down what it found."""
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    options, optimizer = options_of(arguments.rank_of)
    rank, on_gpu = int(os.environ["RANK"]), torch.cuda.is_available()
    backend = DeepSpeedBackend(DeepSpeedConfig(**options))
    spec = RoleSpec(
        role="policy",
        model_path=str(arguments.folder / "model"),
        dtype="bfloat16" if on_gpu else "float32",
        objective=PolicyObjective(
            loss=ComponentRef(kind="rlhf_policy_losses", name="ppo"), aggregation="token-mean"
        ),
        optimizer=ComponentRef(kind="rlhf_optimizers", name=optimizer),
        max_tokens_per_micro_batch=arguments.micro_batch,
    )
    backend.setup(spec, load())
    whole, plan = batch_of(arguments, *map(int, arguments.lengths.split("x")))
    batch = own_part(whole, rank, arguments.ranks)
    seconds, outcome = [], None
    for step in range(arguments.first + arguments.steps):
        started = time.perf_counter()
        outcome = backend.train_step(batch, plan)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        print(step, seconds[-1], flush=True)
    trace: dict[str, Any] = {}
    if arguments.trace and on_gpu:
        with gpu_trace.traced(trace):
            backend.train_step(batch, plan)
    if rank:
        backend.close()
        return
    assert outcome is not None
    step_s = statistics.median(seconds[arguments.first :])
    tokens = int(whole.trajectories.num_tokens.sum())
    found = {
        "seconds": seconds,
        "first_s": sum(seconds[: arguments.first]),
        "step_s": step_s,
        "tokens_per_s": tokens / step_s,
        "gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if on_gpu else 0.0,
        "grad_norm": outcome.metrics["policy/grad_norm"].value(),
    }
    if trace:
        found["trace"] = trace
    (arguments.folder / "found.json").write_text(json.dumps(found))
    backend.close()


def own_part(whole: TrainBatch, rank: int, ranks: int) -> TrainBatch:
    """Return every ``ranks``-th row."""
    rows = np.arange(rank, len(whole.trajectories), ranks)
    actions = whole.trajectories.action_index(rows)
    return TrainBatch(
        trajectories=whole.trajectories.select(rows),
        columns={name: column[actions] for name, column in whole.columns.items()},
    )


def options_of(way: str) -> tuple[dict[str, Any], str]:
    """Return the backend's options and the optimizer's name."""
    options: dict[str, Any] = {}
    optimizer = "adam"
    for word in way.split(","):
        name, _, value = word.partition("=")
        if name == "stage":
            options["zero_stage"] = int(value)
        elif name == "optim":
            optimizer = value
        else:
            options[name] = int(value) if value else True
    return options, optimizer


if __name__ == "__main__":
    main()
