"""The choice of a run's displays, from the section ``log`` of its configuration; a run that trains a role is also
watched for signs that it learns nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf_core.contracts import RunInfo


def displays_of(run: RunInfo) -> list[object]:
    """Return the run's displays, in the order in which they get an event."""
    log = run.config["log"]
    displays: list[object] = []
    if "backend" in run.config:
        from .signs.watch import LearningWatch

        displays.append(LearningWatch(run))
    if log["progress"] != "off":
        displays.append(_progress(log["progress"], run))
    if log["tensorboard"]:
        from .tensorboard_events import TensorBoardEvents

        events = TensorBoardEvents(
            run.output / "tensorboard",
            run.start_step,
            num_images=log["images"],
            images_every=log["samples_every"],
        )
        displays.append(events)
    if log["curve"]:
        from .curve import LearningCurve

        displays.append(LearningCurve(run.output))
    if log["summary"]:
        from .summary import Summary

        # The summary is last, because it names the files that the other displays have written.
        displays.append(Summary(run.output, _console(), run.total_steps, run.command, run.config))
    return displays


def _progress(mode: str, run: RunInfo) -> object:
    console = _console()
    if mode == "live" or (mode == "auto" and console.is_terminal and not console.is_dumb_terminal):
        from .live import LiveProgress

        return LiveProgress(console, run.start_step, run.total_steps)
    from .plain import PlainProgress

    # Every line is flushed, since a user may watch the log file during the run.
    return PlainProgress(partial(print, flush=True), run.start_step, run.total_steps)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)
