"""The learning curve ``learning_curve.png``: reward, or loss and accuracy, and evaluations, over steps and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core.storage import written_whole

from .history import History, Series, read_history
from .wording import eval_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rlhf_core.contracts import RunResult

FILE_NAME = "learning_curve.png"
FEW_POINTS = 40
"""Number of points below which a line has a marker at each point."""


class LearningCurve:
    """Draws the curve at the end of the run, also of a run that failed or was interrupted."""

    def __init__(self, output: Path) -> None:
        self._output = output

    def run_end(self, result: RunResult) -> None:
        """Draw the curve if a step of the run has an end."""
        history = read_history(self._output / "metrics.jsonl")
        if history.reward.steps or history.learned:
            save_curve(history, self._output / FILE_NAME, title=self._output.name)


def save_curve(history: History, path: Path, *, title: str) -> None:
    """Draw ``history`` to a PNG file: one column over steps and one over seconds, with rewards, or losses, above
    evaluations."""
    # Figure and canvas are used directly, because pyplot would choose a window system and keep global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows: list[tuple[str, Mapping[str, Series]]] = []
    if history.reward.steps:
        rows.append(("mean reward of rollouts", {"": history.reward}))
    rows += [(f"{label} of training rows", {"": each}) for label, each in history.learned.items()]
    if history.evals:
        labels = {eval_label(name): series for name, series in history.evals.items()}
        rows.append(("held-out evaluation", labels))
    figure = Figure(figsize=(10, 3.2 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    # Without parse_math=False, a "$" in the run's name would start a formula.
    figure.suptitle(title, parse_math=False)
    axes = figure.subplots(len(rows), 2, sharey="row", squeeze=False)
    for (label, series), (over_steps, over_seconds) in zip(rows, axes, strict=True):
        over_steps.set_ylabel(label)
        _draw(over_steps, "step", {name: (s.steps, s.values) for name, s in series.items()})
        _draw(over_seconds, "seconds", {name: (s.seconds, s.values) for name, s in series.items()})
    with written_whole(path) as file:
        figure.savefig(file, format="png", dpi=120)


def _draw(
    axes: Axes, xlabel: str, lines: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
) -> None:
    for label, (x, y) in lines.items():
        # An infinite value has no place on an axis. NaN makes a gap in the line.
        drawn = [value if isfinite(value) else nan for value in y]
        marker = "o" if len(x) < FEW_POINTS else ""
        axes.plot(x, drawn, label=label, linewidth=1.2, marker=marker, markersize=3)
    axes.set_xlabel(xlabel)
    axes.grid(alpha=0.3)
    if any(lines):
        axes.legend(loc="best", fontsize="small")
