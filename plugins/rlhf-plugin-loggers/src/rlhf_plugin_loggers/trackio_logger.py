"""trackio: metrics by step, tables, images and traces of samples, the configuration, and an alert that says how the run
ended.

trackio finds a run again by its name, which is therefore unique by default. It keeps all rows that it gets: of a step
that was done twice, because its process was killed, both.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .config import TrackioConfig
from .group_table import GROUP_COLUMNS, group_rows
from .remembered import remember, remembered
from .sample_table import COLUMNS, rows, shown_images
from .token_traces import token_traces

if TYPE_CHECKING:
    from trackio.run import Run as TrackioRun

    from rlhf_core.contracts import RolloutSample, RunInfo, RunResult

LEVELS = {"finished": "info", "interrupted": "warn", "failed": "error"}
"""Level of the closing alert by the run's status."""


class TrackioLogger:
    """A run of ``trackio``."""

    def __init__(self, config: TrackioConfig) -> None:
        self.config = config
        self._run: TrackioRun | None = None
        self._num_images = 0

    def start(self, run: RunInfo) -> None:
        import trackio

        options = self.config
        self._num_images = run.config["log"]["images"]
        name = remembered(run.output, "trackio")
        resume = "never" if name is None else "allow"
        if name is None:
            name = options.name or f"{run.output.resolve().name}-{secrets.token_hex(3)}"
            remember(run.output, "trackio", name)
        self._run = trackio.init(
            project=options.project,
            name=name,
            group=options.group,
            resume=resume,
            config=dict(run.config),
            space_id=options.space_id,
            private=options.private,
            server_url=options.server_url,
            embed=False,
        )

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._run is not None
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[RolloutSample]) -> None:
        import trackio

        assert self._run is not None
        table = trackio.Table(columns=list(COLUMNS), data=rows(step, samples))
        pictures = {
            shown.name: trackio.Image(shown.file, caption=shown.uid)
            for shown in shown_images(samples, self._num_images)
        }
        tables = {"samples": table}
        if groups := group_rows(step, samples):
            tables["groups"] = trackio.Table(columns=list(GROUP_COLUMNS), data=groups)
        traces = [
            trackio.Trace(each.messages, each.metadata, each.spans)
            for each in token_traces(samples, self.config.traces)
        ]
        tokens = {"tokens": traces} if traces else {}
        self._run.log({**tables, **pictures, **tokens}, step=step)

    def finish(self, result: RunResult) -> None:
        import trackio

        assert self._run is not None
        level = trackio.AlertLevel(LEVELS[result.status])
        text = result.message or None
        self._run.alert(f"run {result.status}", text, level=level, step=result.steps)
        self._run.finish()
