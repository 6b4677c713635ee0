"""A rank killed while its state is away from the GPU, on two GPUs: the run ends, resumes, and leaves nothing.

    python benchmarks/kill_asleep.py [--gpus 2] [--folder DIR]

Ray, vLLM and DeepSpeed, `runtime.sleep = always`: while engines generate, weights, gradients and Adam's state of the
ranks lie in pinned host memory. Of one run the first rank is killed in the middle of a step's generation, and the run
is resumed; another one is done as a whole. Prints how the killed one ended, rewards and gradients of both by step
(ranks add in an order of their own, so late digits may differ), and what is left: processes, and files in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marked_processes import marked, role, shared_memory

STEPS = 6
KILLED_IN = 4
HANG_S = 240.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    (folder / "tmp").mkdir(parents=True)
    material(folder)
    killed = started(folder, "killed", arguments.gpus)
    where = kill_a_rank(folder, killed)
    print(f"killed a rank {where}; the run ended with status", killed.wait(HANG_S), flush=True)
    print(f"left by it: {left(folder)}", flush=True)
    again = started(folder, "killed", arguments.gpus, "--resume", "auto")
    print("resumed: status", again.wait(HANG_S), flush=True)
    print(f"left: {left(folder)}", flush=True)
    whole = started(folder, "whole", arguments.gpus)
    print("whole run: status", whole.wait(HANG_S), flush=True)
    print(compared(records(folder / "whole"), records(folder / "killed")))


def material(folder: Path) -> None:
    """Write a tiny model, prompts and a reward."""
    from rlhf_testing.tiny import write_tiny_model

    write_tiny_model(folder / "model", hidden_size=256, num_layers=8)
    rows = [json.dumps({"prompt": f"{number:05d}"}) for number in range(64 * STEPS)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "reward.py").write_text("def score(token_ids):\n    return sum(token_ids) % 7 / 7\n")


def started(folder: Path, name: str, gpus: int, *further: str) -> subprocess.Popen[bytes]:
    """Start a run; its temporary folder marks all of its processes."""
    options = {
        "model": folder / "model",
        "model.dtype": "bfloat16",
        "data": folder / "rows.jsonl",
        "reward": f"{folder}/reward.py:score",
        "output": folder / name,
        "runtime": "ray",
        "backend": "deepspeed",
        "backend.deepspeed.zero_stage": 2,
        "engine": "vllm",
        "engine.vllm.kv_cache_gib": 2,
        "engine.vllm.compile": "false",
        "runtime.ray.ranks.policy": gpus,
        "runtime.ray.engines": gpus,
        "runtime.sleep": "always",
        "rollout.batch_size": 64,
        "rollout.n_samples_per_prompt": 4,
        "rollout.min_new_tokens": 480,
        "rollout.max_new_tokens": 480,
        "data.max_prompt_tokens": 8,
        "steps": STEPS,
        "checkpoint.every": 1,
        "log.progress": "off",
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rlhf_cli", "train", *words, *further],
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
        )


def kill_a_rank(folder: Path, run: subprocess.Popen[bytes]) -> str:
    """Kill the first rank in the middle of a step's generation, and return what and where it was."""
    end = time.monotonic() + HANG_S
    while len(records(folder / "killed")) < KILLED_IN - 1:
        if run.poll() is not None or time.monotonic() > end:
            raise SystemExit(
                f"no step {KILLED_IN - 1}:\n{(folder / 'killed.log').read_text()[-3000:]}"
            )
        time.sleep(0.01)
    timing = records(folder / "killed")[-1]["timing"]
    time.sleep(0.5 * timing["generate_s"] + timing.get("moves_s", 0.0) / 2)
    roles = {pid: role(pid, run.pid) for pid in marked("TMPDIR", str(folder / "tmp"))}
    ranks = sorted(pid for pid, name in roles.items() if name == "rank")
    if not ranks:
        raise SystemExit(f"no rank among {sorted(set(roles.values()))}:\n{titles(roles)}")
    os.kill(ranks[0], signal.SIGKILL)
    return f"(of {len(ranks)}) {timing['generate_s']:.2f} s of generation, moves {timing.get('moves_s', 0.0):.2f} s"


def titles(pids: Iterable[int]) -> str:
    """Return a line with the command of each process."""
    files = (Path(f"/proc/{pid}/cmdline") for pid in pids)
    words = (
        file.read_bytes().replace(b"\0", b" ").decode()[:120] for file in files if file.exists()
    )
    return "\n".join(words)


def left(folder: Path) -> dict[str, Any]:
    """Return the run's processes that outlived it by 15 s, and their or anybody's files in /dev/shm."""
    end = time.monotonic() + 15
    while (pids := marked("TMPDIR", str(folder / "tmp"))) and time.monotonic() < end:
        time.sleep(0.2)
    return {
        "processes": [role(pid, -1) for pid in pids],
        "shared": sorted(shared_memory(pids)),
        "/dev/shm": sorted(os.listdir("/dev/shm")),
    }


def records(run: Path) -> list[dict[str, Any]]:
    """Return the records of the steps that a run has done."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if "timing" in line]


def compared(whole: list[dict[str, Any]], killed: list[dict[str, Any]]) -> str:
    """Return a line for each step with both runs' numbers."""
    lines = ["step  reward, whole  and killed   gradient, whole  and killed"]
    for one, other in zip(whole, killed, strict=True):
        pairs = [
            f"{one['metrics'][name]:.6f} {other['metrics'][name]:.6f}"
            for name in ("reward/mean", "policy/grad_norm")
        ]
        lines.append(f"{one['step']:4}  {'   '.join(pairs)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
