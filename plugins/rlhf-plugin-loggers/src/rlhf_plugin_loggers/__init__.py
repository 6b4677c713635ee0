"""Progress line, TensorBoard events, learning curve and closing summary: observers of a run, nothing else.

The hooks pass on what they hear to the observers of the current run. Each of those is isolated from the others: a
full disk that stops TensorBoard does not take the progress line with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core import hookimpl

if TYPE_CHECKING:
    from rlhf_core.contracts import RunInfo, RunResult

log = logging.getLogger(__name__)

_observers: list[object] = []
"""Of the run that is going on in this process. Hooks are functions of a module, so their state is here."""


@hookimpl
def rlhf_run_start(run: RunInfo) -> None:
    from .observers import observers_of

    _observers[:] = observers_of(run)
    _tell("run_start", run)


@hookimpl
def rlhf_step_end(step: int, metrics: Mapping[str, float]) -> None:
    _tell("step_end", step, metrics)


@hookimpl
def rlhf_eval_end(step: int, metrics: Mapping[str, float]) -> None:
    _tell("eval_end", step, metrics)


@hookimpl
def rlhf_checkpoint_saved(step: int, path: Path) -> None:
    _tell("checkpoint_saved", step, path)


@hookimpl
def rlhf_run_end(result: RunResult) -> None:
    _tell("run_end", result)
    _observers.clear()


def _tell(event: str, *arguments: Any) -> None:
    """Call ``event`` on each observer that has such a method; one that fails hears nothing more of this run."""
    for observer in list(_observers):
        method = getattr(observer, event, None)
        if method is None:
            continue
        try:
            method(*arguments)
        except Exception:
            log.exception(
                "%s failed and is switched off for the rest of this run", type(observer).__name__
            )
            _observers.remove(observer)
