"""Data that observer hooks get of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run at its start, given to ``rlhf_run_start``."""

    output: Path
    """The run folder: ``config.toml``, ``metrics.jsonl``, ``ledger.jsonl``, ``run.log``, ``checkpoints/``, ``model/``,
    and more."""
    config: Mapping[str, Any]
    """The resolved configuration, as nested plain values."""
    total_steps: int
    """Number of steps that the run is to have."""
    start_step: int
    """Number of steps already done; more than 0 after a resume."""
    command: str = "train"
    """Name of the command that started the run, as in ``rlhf train``."""
    notes: tuple[str, ...] = ()
    """Messages of level INFO while the run was built, such as the optimizers' parameter groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSample:
    """One sample as text, given to ``rlhf_rollout_end``."""

    uid: str
    """``epoch.prompt.sample.segment``."""
    prompt: str
    response: str
    reward: float
    truncated: bool
    images: tuple[Path, ...] = ()
    """Files of its images, in their order, in the run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run at its end, given to ``rlhf_run_end``."""

    status: Literal["finished", "interrupted", "failed"]
    steps: int
    """Number of steps that are done, those before a resume included."""
    seconds: float
    message: str = ""
    """Reason for an end before the last step, in one line; empty for a finished run."""
    model: Path | None = None
    """Folder of the exported model; None if there is none."""
