"""Credit by turn against credit at the end: mean reward by step on the toy ``echo_digits``, a curve and a table.

    python benchmarks/turn_credit.py --jobs 2 --output runs/turn_credit
    python benchmarks/turn_credit.py --output runs/turn_credit --publish docs/turn_credit.png

In each of the turns of an episode a digit has to be echoed. Both runs earn the same rewards for the same answers: one
is told after each turn, the other has the sum of all on its last turn. The estimator is ``gigpo`` without credit for
later turns: it compares whole episodes, and turns that read the same. Model, seeds, steps and all other options are
equal; each run is a process of one thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlhf_testing.tiny import write_tiny_model

CREDITS = ("turn", "end")
SHOWN = (1, 20, 40, 60, 80, 100)


def train(output: Path, credit: str, seed: int, steps: int, turns: int) -> None:
    """Train one run into ``output``, unless it is there already."""
    run = output / f"{credit}-{seed}"
    if run.exists():
        return
    options = {
        "model": output / "model",
        "output": run,
        "seed": seed,
        "executor": "multi_turn",
        "env": "echo_digits",
        "env.echo_digits.credit": credit,
        "env.echo_digits.num_turns": turns,
        "estimator": "gigpo",
        "algo.advantage.gigpo.gamma": 0,
        "rollout.batch_size": 8,
        "rollout.n_samples_per_prompt": 8,
        "rollout.max_new_tokens": 2,
        "rollout.max_length": 8 * turns,
        "rollout.multi_turn.max_turns": turns,
        "actor.adam.lr": 2e-3,
        "algo.loss.entropy_coef": 0.02,
        "train.steps": steps,
        "runtime.local.threads": 1,
        "log.progress": "off",
        "log.tensorboard": "false",
        "log.curve": "false",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    program = "import sys; from rlhf_cli.main import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", program, "train", *words], check=True)


def rewards_of(run: Path) -> list[float]:
    """Return the mean share of right digits in the episodes of each step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["metrics"]["rollout/env/right"] for line in lines if "metrics" in line]


def print_table(output: Path, seeds: Sequence[int]) -> None:
    """Print the share of right digits by step, a column for each run."""
    runs = [(credit, seed) for credit in CREDITS for seed in seeds]
    curves = {run: rewards_of(output / f"{run[0]}-{run[1]}") for run in runs}
    print("| step | " + " | ".join(f"{credit}, seed {seed}" for credit, seed in runs) + " |")
    print("|---:|" + "---:|" * len(runs))
    for step in SHOWN:
        if step <= min(map(len, curves.values())):
            cells = " | ".join(f"{curves[run][step - 1]:.2f}" for run in runs)
            print(f"| {step} | {cells} |")


def draw(output: Path, seeds: Sequence[int], picture: Path) -> None:
    """Draw a line for each run: by turn in one color, at the end in another."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for credit, color in zip(CREDITS, ("tab:blue", "tab:orange"), strict=True):
        for seed in seeds:
            curve = rewards_of(output / f"{credit}-{seed}")
            label = f"credit by {credit}" if credit == "turn" else "credit at the end"
            axes.plot(
                range(1, len(curve) + 1),
                curve,
                color=color,
                linewidth=1.0,
                label=label if seed == seeds[0] else None,
            )
    axes.set(xlabel="step", ylabel="right digits", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(picture, dpi=90, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs/turn_credit"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--publish", type=Path, help="picture of the curves")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if not (options.output / "model").exists():
        write_tiny_model(
            options.output / "model",
            alphabet="0123456789=",
            hidden_size=64,
            num_layers=2,
            num_heads=4,
        )
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(train, options.output, credit, seed, options.steps, options.turns)
            for seed in options.seeds
            for credit in CREDITS
        ]
        for run in runs:
            run.result()
    print_table(options.output, options.seeds)
    if options.publish:
        draw(options.output, options.seeds, options.publish)


if __name__ == "__main__":
    main()
