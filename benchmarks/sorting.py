"""Three estimators on ``rlhf-env-sorting``: the share of held-out rows that are sorted, by step; a curve and a table.

    python benchmarks/sorting.py --jobs 2 --output runs/sorting
    python benchmarks/sorting.py --output runs/sorting --publish examples/rlhf-env-sorting/curve.png

All options but the estimator are those of ``examples/rlhf-env-sorting/run.toml``; the estimators have their defaults.
Each run is a process of one thread. Runs that are there already are not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples/rlhf-env-sorting"
ESTIMATORS = ("rloo", "group_norm", "reinforce_baseline")
COLORS = ("tab:blue", "tab:orange", "tab:green")
METRIC = "eval/sorting/T0/rollout/env/sorted"


def train(output: Path, estimator: str, seed: int) -> None:
    """Train one run into ``output``, unless it is there already."""
    run = output / f"{estimator}-{seed}"
    if (run / "model").exists():
        return
    words = [
        *("train", "-c", str(EXAMPLE / "run.toml"), "--estimator", estimator),
        *("--seed", str(seed), "--output", str(run)),
        *("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [sys.executable, "-m", "rlhf_cli", *words], cwd=ROOT, env=environment, check=True
    )


def curve_of(run: Path) -> tuple[list[int], list[float]]:
    """Return the steps with an evaluation, and the share of sorted rows at each."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    found = [(line["step"], line["eval"][METRIC]) for line in lines if "eval" in line]
    return [step for step, _ in found], [value for _, value in found]


def print_table(output: Path, seeds: Sequence[int]) -> None:
    """Print the share of sorted rows by step, a column for each run."""
    runs = [(estimator, seed) for estimator in ESTIMATORS for seed in seeds]
    curves = [curve_of(output / f"{estimator}-{seed}") for estimator, seed in runs]
    print("| step | " + " | ".join(f"`{name}`, seed {seed}" for name, seed in runs) + " |")
    print("|---:|" + "---:|" * len(runs))
    for number, step in enumerate(curves[0][0]):
        print(f"| {step} | " + " | ".join(f"{values[number]:.2f}" for _, values in curves) + " |")


def draw(output: Path, seeds: Sequence[int], picture: Path) -> None:
    """Draw a line for each run, those of an estimator in one color."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for estimator, color in zip(ESTIMATORS, COLORS, strict=True):
        for seed in seeds:
            steps, values = curve_of(output / f"{estimator}-{seed}")
            label = estimator if seed == seeds[0] else None
            axes.plot(steps, values, color=color, linewidth=1.0, label=label)
    axes.set(xlabel="step", ylabel="held-out rows sorted", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(picture, dpi=90, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs/sorting"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--publish", type=Path, help="picture of the curves")
    options = parser.parse_args()
    if not (EXAMPLE / "data").exists():
        subprocess.run([sys.executable, str(EXAMPLE / "prepare.py")], check=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(train, options.output, estimator, seed)
            for seed in options.seeds
            for estimator in ESTIMATORS
        ]
        for run in runs:
            run.result()
    print_table(options.output, options.seeds)
    if options.publish:
        draw(options.output, options.seeds, options.publish)


if __name__ == "__main__":
    main()
