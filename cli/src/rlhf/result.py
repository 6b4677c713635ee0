"""The end of a training, with everything that it left in its folder."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_cli.records import records_of
from rlhf_core import MissingDependency
from rlhf_core.contracts import RunResult

from .curve import curve_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """A training at its end. Metrics and samples are read from the run folder when they are asked for."""

    status: Literal["finished", "interrupted", "failed"]
    """``interrupted``: it was stopped before its last step, and ``resume="auto"`` goes on."""
    output: Path
    """The run folder."""
    steps: int
    seconds: float
    message: str = ""
    """Reason for an end before the last step; empty for a finished training."""
    model: Path | None = None
    """Folder of the trained model; None if there is none."""

    @classmethod
    def of(cls, result: RunResult, output: Path) -> TrainingResult:
        """Return the result of a run in a folder."""
        return cls(
            status=result.status,
            output=output,
            steps=result.steps,
            seconds=result.seconds,
            message=result.message,
            model=result.model,
        )

    def metrics(self) -> list[dict[str, float]]:
        """Return a dict for each step: ``step``, ``time_s``, its metrics, ``timing/...``, and ``eval/...`` where the
        weights after it were evaluated. An evaluation before the first step is a dict of step 0.

        Raises:
            ConfigError: a line of the record is no JSON object with an integer ``step``.
        """
        rows: dict[int, dict[str, float]] = {}
        for line in self._records("metrics.jsonl"):
            row = rows.setdefault(line["step"], {"step": line["step"], "time_s": line["time_s"]})
            row |= line.get("metrics", {}) | line.get("eval", {})
            row |= {f"timing/{name}": value for name, value in line.get("timing", {}).items()}
        return [rows[step] for step in sorted(rows)]

    def frame(self) -> Any:
        """Return ``metrics()`` as a pandas data frame, with the steps as its index.

        Raises:
            ConfigError: a line of the record is no JSON object with an integer ``step``.
            MissingDependency: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingDependency(
                "frame() needs pandas: pip install pandas. metrics() gives the same as a list of dicts."
            ) from error
        return pandas.DataFrame(self.metrics()).set_index("step")

    def samples(self) -> list[dict[str, Any]]:
        """Return the recorded episodes, a few of each step: ``step``, ``prompt``, ``response``, ``reward`` and more.

        Raises:
            ConfigError: a line of the record is no JSON object with an integer ``step``.
        """
        return list(self._records("samples.jsonl"))

    def eval_samples(self) -> list[dict[str, Any]]:
        """Return the recorded episodes of evaluations, with set and temperature of each as ``eval``; of a command that
        trains on examples the held-out rows, with their set.

        Raises:
            ConfigError: a line of the record is no JSON object with an integer ``step``.
        """
        return list(self._records("eval_samples.jsonl"))

    def _records(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.output / name
        return records_of(path) if path.exists() else iter(())

    def _repr_html_(self) -> str:
        text = f"{self.status} after {self.steps} steps, {self.seconds:.1f} s. {self.message}"
        model = f"<br>model: <code>{html.escape(str(self.model))}</code>" if self.model else ""
        return f"<p>{html.escape(text)}{model}</p>{curve_of(self.metrics())}"
