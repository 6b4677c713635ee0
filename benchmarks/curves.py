"""Draw a held-out metric of several runs in one picture, by step and by minutes: LABEL=RUN for each run.

python benchmarks/curves.py --metric eval/held_out/T0/pass@1 curve.png "all weights=runs/a" "LoRA=runs/b"
python benchmarks/curves.py --metric eval/held_out/T0/pass@1 curve.png "GRPO=runs/seed42" "GRPO=runs/seed43"

A run is a folder, or a file with lines of its ``metrics.jsonl``. Runs of one label, such as several seeds, have one
color.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
"""Colors that the color-blind tell apart (Okabe and Ito)."""


class Curve(NamedTuple):
    steps: list[int]
    minutes: list[float]
    """Time spent in steps: evaluations, checkpoints and the start are left out."""
    values: list[float]


def curve_of(run: Path, metric: str) -> Curve:
    """Return each evaluation of a run.

    Raises:
        SystemExit: no evaluation has this metric.
    """
    file = run / "metrics.jsonl" if run.is_dir() else run
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [record for record in map(json.loads, lines) if metric in record.get("eval", {})]
    if not found:
        raise SystemExit(f"{run}: no evaluation has {metric}")
    return Curve(
        steps=[record["step"] for record in found],
        minutes=[record["time_s"] / 60 for record in found],
        values=[record["eval"][metric] for record in found],
    )


def draw(curves: dict[str, list[Curve]], label: str, picture: Path) -> None:
    """Write two panels, the same values by step and by minutes; ``curves`` by their label."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for color, (name, seeds) in zip(COLORS, curves.items(), strict=False):
        for number, curve in enumerate(seeds):
            style = {"color": color, "marker": "o", "markersize": 3}
            style["label"] = f"_{name}" if number else name  # the legend leaves out what begins so
            by_step.plot(curve.steps, curve.values, **style)
            by_time.plot(curve.minutes, curve.values, **style)
    by_step.set(xlabel="step", ylabel=label, ylim=(0, None))
    by_time.set(xlabel="minutes in steps")
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
    by_step.legend(fontsize=8, loc="lower right")
    figure.savefig(picture, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a held-out metric of several runs.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("runs", nargs="+", help="LABEL=RUN")
    parser.add_argument("--metric", required=True, help="as in metrics.jsonl, under eval")
    parser.add_argument("--label", default="right answers, held out")
    arguments = parser.parse_args()
    curves: dict[str, list[Curve]] = {}
    for named in arguments.runs:
        label, _, run = named.partition("=")
        curves.setdefault(label, []).append(curve_of(Path(run), arguments.metric))
    if len(curves) > len(COLORS):
        raise SystemExit(f"at most {len(COLORS)} labels can be told apart")
    draw(curves, arguments.label, arguments.picture)


if __name__ == "__main__":
    main()
