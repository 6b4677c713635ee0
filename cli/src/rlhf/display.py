"""Live progress in a notebook: a line of numbers and the curve of the reward, drawn anew after each step.

IPython is never imported: where it has not been, there is no notebook. Elsewhere progress is the command line's.
"""

from __future__ import annotations

import html
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from .callbacks import DoneStep
from .curve import curve_of
from .result import TrainingResult

SHOWN = ("reward/mean", "policy/entropy", "policy/grad_norm", "policy/lr", "timing/step_s")
"""Metrics beside the curve, those that a run has."""


def notebook() -> Any | None:
    """Return the shell of the notebook that this process is the kernel of, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


class NotebookView:
    """One display of a notebook cell, which each step replaces. Used from the cell's own thread."""

    def __init__(self) -> None:
        # The shell has imported it already; it has no types.
        shown: Any = importlib.import_module("IPython.display")
        self._html = shown.HTML
        self._handle = shown.display(shown.HTML("<p>building ...</p>"), display_id=True)
        self._history: list[dict[str, float]] = []

    def show(self, step: DoneStep, total_steps: int | None) -> None:
        """Draw the run as it is after a step."""
        self._history.append({"step": step.number, **step.metrics})
        values = {**step.metrics, **step.evaluation}
        self._update(f"step {step.number} of {total_steps}" + numbers_of(values))

    def end(self, result: TrainingResult) -> None:
        """Draw the run as it ended."""
        text = (
            f"{result.status} after {result.steps} steps, {result.seconds:.1f} s. {result.message}"
        )
        self._update(html.escape(text))

    def _update(self, text: str) -> None:
        self._handle.update(self._html(f"<p>{text}</p>{curve_of(self._history)}"))


def numbers_of(values: Mapping[str, float]) -> str:
    """Return the metrics to look at as text for HTML: the usual ones, losses where there are no rewards, then
    evaluations."""
    losses = [] if SHOWN[0] in values else [name for name in values if name.startswith("loss/")]
    names = [*losses, *SHOWN, *(name for name in values if name.startswith("eval/"))]
    shown = [f"{html.escape(name)} {values[name]:.4g}" for name in names if name in values]
    return "".join(f" &middot; {text}" for text in shown)
