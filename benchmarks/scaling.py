"""Steps of one workload on one and on several GPUs: tokens per second, and how much faster than on one.

    python benchmarks/scaling.py --shape 1.5b --gpus 2 --json scaling.json
    python benchmarks/scaling.py --shape tiny --gpus 2 -- engine=embedded model.dtype=float32

Modes: ``one`` is the local runtime on a single GPU; ``colocated`` has a rank and an engine on each GPU, ZeRO stage 2;
``split`` gives half of the GPUs to ranks and half to engines, generation one version ahead. The workload stays the
same (strong scaling) and is measured as ``gpu_step.py`` does, but for response lengths: nothing forbids an early end,
which random weights of a published shape come to once in 150 000 tokens. ``--`` is followed by further options of every
mode; those of a backend or runtime that it does not use are left out. A mode that fails is a line of the table, and the
others are measured all the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import gpu_step
from shapes import SHAPES

RAY = {
    "runtime": "ray",
    "backend": "deepspeed",
    "backend.torch.compile": None,
    "backend.deepspeed.compile": "true",
}
NOT_USED = {
    "one": ("backend.deepspeed.", "runtime.ray."),
    "colocated": ("backend.torch.",),
    "split": ("backend.torch.",),
}
"""Beginnings of the options that a mode does not know."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="1.5b", choices=["tiny", *SHAPES])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--modes", nargs="*", choices=list(NOT_USED), default=list(NOT_USED))
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--response-tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="NAME=VALUE: options of rlhf train")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.shape == "tiny":
            from rlhf_testing.tiny import write_tiny_model

            # Heads of 64, which attention kernels of GPUs know.
            write_tiny_model(Path(folder) / "tiny", hidden_size=256, num_layers=4)
        rows: list[dict[str, Any]] = []
        for mode in arguments.modes:
            rows.append(measured(arguments, mode, Path(folder)))
            print(table(rows), flush=True)
            if arguments.json:
                report = {"shape": arguments.shape, "rows": rows}
                arguments.json.write_text(json.dumps(report, indent=1))


def options_of(mode: str, gpus: int) -> dict[str, str | None]:
    """Options of ``rlhf train`` by name; None takes one away that ``gpu_step.py`` sets."""
    if mode == "one":
        return {}
    if mode == "colocated":
        return RAY | {
            "backend.deepspeed.zero_stage": "2",
            "runtime.ray.ranks.policy": str(gpus),
            "runtime.ray.engines": str(gpus),
        }
    half = gpus // 2
    return RAY | {
        "backend.deepspeed.zero_stage": "2" if half > 1 else "0",
        "runtime.ray.ranks.policy": str(half),
        "runtime.ray.engines": str(gpus - half),
        "runtime.ray.colocate": "none",
        "rollout.max_staleness": "1",
    }


def measured(arguments: argparse.Namespace, mode: str, folder: Path) -> dict[str, Any]:
    """Return a mode's median seconds, or why there are none."""
    free = {"rollout.min_new_tokens": "0"}
    words = [
        f"{name}={value or ''}" for name, value in (free | options_of(mode, arguments.gpus)).items()
    ]
    further = [option for option in arguments.options if not option.startswith(NOT_USED[mode])]
    names = ("shape", "prompts", "samples", "prompt_tokens", "response_tokens", "steps")
    asked = gpu_step.command_line().parse_args([])
    vars(asked).update({name: getattr(arguments, name) for name in names})
    asked.options = [*words, *further]
    row: dict[str, Any] = {"mode": mode, "gpus": 1 if mode == "one" else arguments.gpus}
    try:
        report = gpu_step.measure(asked, folder)
    except SystemExit as error:
        print(error, flush=True)
        return row | {"failed": f"see above ({str(error).splitlines()[0][:60]} ...)"}
    print(gpu_step.table(report), flush=True)
    timings = [record["timing"] for record in report["ours"]["records"][1:]]
    tokens = arguments.prompts * arguments.samples
    tokens *= arguments.prompt_tokens + arguments.response_tokens
    median = gpu_step.medians(timings)
    metrics = report["ours"]["records"][-1]["metrics"]
    return row | {
        "records": report["ours"]["records"],
        "tokens_per_s": tokens / median["step_s"],
        "mismatch": metrics.get("mismatch/logprob_diff_mean"),
        **median,
    }


VALUES = (
    "{mode:10} {gpus:4} {step_s:8.2f} {generate_s:8.2f} {train_s:8.2f} {hold_s:8.2f} {sync_s:8.3f} "
    "{tokens_per_s:9.0f} {speedup:8.2f}"
)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the modes as lines of text; the speedup is over the first one that worked."""
    lines = ["mode       GPUs   step s generate    train     hold     sync  tokens/s  speedup"]
    first = next((row["tokens_per_s"] for row in rows if "tokens_per_s" in row), None)
    for row in rows:
        if "failed" in row:
            lines.append(f"{row['mode']:10} {row['gpus']:4} failed: {row['failed']}")
            continue
        shown = {"hold_s": 0.0, "speedup": row["tokens_per_s"] / first, **row}
        lines.append(VALUES.format(**shown))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
