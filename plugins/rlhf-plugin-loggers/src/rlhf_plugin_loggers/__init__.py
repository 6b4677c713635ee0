"""Displays of a run (progress line, TensorBoard events, learning curve, closing summary, warnings that it learns
nothing), loggers to other places, observers that end a run, and the command that draws a learning curve again.

The observer hooks pass each event on to the displays of the current run. A failure of one display does not affect the
others: a full disk that stops TensorBoard does not stop the progress line. Loggers and observers are components: the
core calls them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core import Component, hookimpl, log_switched_off

from .config import MlflowConfig, TrackioConfig, WandbConfig
from .ending import early_stop, time_limit

if TYPE_CHECKING:
    from rlhf_core.contracts import RolloutSample, RunInfo, RunResult

log = logging.getLogger(__name__)

_displays: list[object] = []
"""Displays of the run in this process. The list is global because hooks are functions of a module."""


@hookimpl
def rlhf_observers() -> list[Component[Any]]:
    return [early_stop.COMPONENT, time_limit.COMPONENT]


@hookimpl
def rlhf_loggers() -> list[Component[Any]]:
    return [
        Component(
            name="wandb",
            factory="rlhf_plugin_loggers.wandb_logger:WandbLogger",
            config=WandbConfig,
            summary="Weights & Biases, on its servers or as files for wandb sync",
            extra="wandb",
        ),
        Component(
            name="trackio",
            factory="rlhf_plugin_loggers.trackio_logger:TrackioLogger",
            config=TrackioConfig,
            summary="trackio, on this machine, in a Hugging Face Space or on a server of yours",
            extra="trackio",
        ),
        Component(
            name="mlflow",
            factory="rlhf_plugin_loggers.mlflow_logger:MlflowLogger",
            config=MlflowConfig,
            summary="MLflow, on a tracking server or in a database file",
            extra="mlflow",
        ),
    ]


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    return [
        Component(
            name="curve",
            factory="rlhf_plugin_loggers.curve_command:draw",
            summary="Redraw the learning curves of runs.",
        )
    ]


@hookimpl
def rlhf_run_start(run: RunInfo) -> None:
    from .displays import displays_of

    _displays[:] = displays_of(run)
    _tell("run_start", run)


@hookimpl
def rlhf_rollout_end(
    step: int, samples: Sequence[RolloutSample], metrics: Mapping[str, float]
) -> None:
    _tell("rollout_end", step, samples)


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
    _displays.clear()


def _tell(event: str, *arguments: Any) -> None:
    """Call the method ``event`` of each display that has it. A display that fails is removed for this run."""
    for display in list(_displays):
        method = getattr(display, event, None)
        if method is None:
            continue
        try:
            method(*arguments)
        except Exception as error:
            log_switched_off(log, error, "%s failed", type(display).__name__)
            _displays.remove(display)
