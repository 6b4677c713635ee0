"""The span of a run that is trained again, and the checkpoint from which it is reached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rlhf_core import ConfigError

from ..paper.contents import require_run
from ..recorded.metrics import Metrics, read_metrics
from ..recorded.options import read_options
from ..recorded.problems import Problems

_CHECKPOINT = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Steps of a run, and what its records have of them."""

    run: Path
    command: str
    """Name of the command that made the run, as ``train``."""
    first: int
    last: int
    """Steps from ``first`` to ``last``, both included."""
    checkpoints: dict[int, Path]
    """The run's own checkpoints by step."""
    metrics: Metrics
    """Metrics that the run recorded."""

    @property
    def start(self) -> Path | None:
        """The newest checkpoint before the span; None: the span is reached from the run's beginning."""
        before = [step for step in self.checkpoints if step < self.first]
        return self.checkpoints[max(before)] if before else None


def checkpoints_of(run: Path) -> dict[int, Path]:
    """Return the complete checkpoints of a run folder by step."""
    found = {}
    for path in sorted((run / "checkpoints").glob("step-*")):
        if (match := _CHECKPOINT.fullmatch(path.name)) and (path / "manifest.json").is_file():
            found[int(match[1])] = path
    return found


def find_span(run: Path, first: int, last: int) -> Span:
    """Return the span of ``run`` from step ``first`` to ``last``.

    Raises:
        ConfigError: the run has no such steps, no checkpoint before them, or was made by another version.
    """
    require_run(run, "rlhf replay")
    if not 1 <= first <= last:
        raise ConfigError(
            f"rlhf replay --from {first} --to {last}: expected 1 <= --from <= --to; the first step is 1. Set --from 1"
        )
    problems = Problems()
    options = read_options(run / "config.toml", problems)
    if not options.version or not options.command:
        raise ConfigError(
            f"{run / 'config.toml'}: expected the configuration that the run wrote, which names version and command; "
            f"got {'; '.join(problems.lines()) or 'a file without its first line'}. Put the run's own file back."
        )
    here = f"rlhf-core {version('rlhf-core')}"
    if options.version != here:
        raise ConfigError(
            f"{run}: the run was made by {options.version}; got {here}, which need not compute the same bits. "
            f"Replay it with pip install {options.version.replace(' ', '==')}."
        )
    metrics = read_metrics(run / "metrics.jsonl", problems)
    if last > metrics.last_step:
        raise ConfigError(
            f"rlhf replay --to {last}: expected a step that {run} has recorded; its last one is {metrics.last_step}. "
            f"Set --to {metrics.last_step}"
        )
    checkpoints = checkpoints_of(run)
    span = Span(
        run=run,
        command=options.command,
        first=first,
        last=last,
        checkpoints=checkpoints,
        metrics=metrics,
    )
    if span.start is None and first > 1:
        raise ConfigError(_no_checkpoint(run, first, checkpoints))
    return span


def _no_checkpoint(run: Path, first: int, checkpoints: dict[int, Path]) -> str:
    earliest = min(checkpoints, default=None)
    later = (
        ""
        if earliest is None
        else f"--from {earliest + 1} or later, which a checkpoint precedes, or "
    )
    got = "none" if earliest is None else f"that of step {earliest} as the first one"
    return (
        f"rlhf replay --from {first}: expected a checkpoint of {run} before step {first}; got {got}. Choose {later}"
        "--from 1, the run's beginning. --checkpoint.every and --checkpoint.keep leave more of them."
    )
