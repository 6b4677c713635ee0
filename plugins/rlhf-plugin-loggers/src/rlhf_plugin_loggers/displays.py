"""The choice of a run's displays, from the section ``log`` of its configuration; a run that trains a role is also
watched for signs that it learns nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rlhf_core import StorageError, log_switched_off

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf_core.contracts import RunInfo

logger = logging.getLogger(__name__)


def displays_of(run: RunInfo) -> list[object]:
    """Return the run's displays, in the order in which they get an event."""
    log = run.config["log"]
    displays: list[object] = []
    if "backend" in run.config:
        from .signs import LearningWatch

        displays.append(LearningWatch(run))
    if log["progress"] != "off":
        displays.append(_progress(log["progress"], run))
    if log["tensorboard"]:
        displays += _events(log, run)
    if log["curve"]:
        from .curve import LearningCurve

        displays.append(LearningCurve(run.output))
    if log["summary"]:
        from .summary import Summary

        # The summary is last, because it names the files that the other displays have written.
        displays.append(Summary(run.output, _console(), run.total_steps, run.command, run.config))
    return displays


def _events(log: Mapping[str, Any], run: RunInfo) -> list[object]:
    """Return the display that writes TensorBoard events; none where it cannot, which is said."""
    from .tensorboard_events import TensorBoardEvents

    try:
        events = TensorBoardEvents(
            run.output / "tensorboard",
            run.start_step,
            num_images=log["images"],
            images_every=log["samples_every"],
        )
    except StorageError as error:
        log_switched_off(logger, error, "%s failed", TensorBoardEvents.__name__)
        return []
    return [events]


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
