"""The span of a run that is trained again, and the checkpoint from which it is reached."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import parse_object

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
    digests: dict[int, dict[str, object]]
    """Digest of each file of the roles, by step of the span with a checkpoint. They are read before anything is
    trained, as a run that goes on removes its checkpoints."""
    missing: tuple[str, ...] = ()
    """Sentences on what the run's records lack."""

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
    """Return the span of ``run`` from step ``first`` to ``last``, or to the last one that is recorded.

    Raises:
        ConfigError: the run has no such steps, no checkpoint before them, or was made by another version.
    """
    require_run(run, "rlhf replay")
    if not 1 <= first <= last:
        raise ConfigError(
            f"rlhf replay --from {first} --to {last}: expected 1 <= --from <= --to; the first step is 1. Set --from 1",
            code="lab/malformed-span",
        )
    problems = Problems()
    options = read_options(run / "config.toml", problems)
    if not options.version or not options.command:
        raise ConfigError(
            f"{run / 'config.toml'}: expected the configuration that the run wrote, which names version and command; "
            f"got {'; '.join(problems.lines()) or 'a file without its first line'}. Put the run's own file back.",
            code="lab/other-version",
        )
    here = f"rlhf-core {version('rlhf-core')}"
    if options.version != here:
        raise ConfigError(
            f"{run}: the run was made by {options.version}; got {here}, which need not compute the same bits. "
            f"Replay it with pip install {options.version.replace(' ', '==')}.",
            code="lab/other-version",
        )
    metrics = read_metrics(run / "metrics.jsonl", problems)
    checkpoints = checkpoints_of(run)
    recorded = max(metrics.last_step, *checkpoints, 0)
    planned = options.values.get("train.steps", "")
    if first > recorded or (planned.isdecimal() and last > max(int(planned), recorded)):
        raise ConfigError(
            f"rlhf replay --from {first} --to {last}: expected steps that {run} has recorded; its last one is "
            f"{recorded}. Set {'--to' if first <= recorded else '--from'} {recorded}",
            code="lab/no-such-step",
        )
    missing = [f"{run}: {line}" for line in problems.lines()]
    if last > recorded:
        missing.append(
            f"{run}: steps {recorded + 1} to {last} are not recorded: the run goes on, or ended before"
        )
    last = min(last, recorded)
    span = Span(
        run=run,
        command=options.command,
        first=first,
        last=last,
        checkpoints=checkpoints,
        metrics=metrics,
        digests=_digests_within(checkpoints, first, last),
        missing=tuple(missing),
    )
    if span.start is None and first > 1:
        raise ConfigError(_no_checkpoint(run, first, checkpoints), code="lab/no-checkpoint")
    return span


def digests_of(checkpoint: Path) -> dict[str, object]:
    """Return the digest of each file of the roles: weights, optimizers and generators."""
    files = parse_object((checkpoint / "manifest.json").read_bytes())["files"]
    return {name: digest for name, digest in files.items() if "/" in name}


def _digests_within(
    checkpoints: Mapping[int, Path], first: int, last: int
) -> dict[int, dict[str, object]]:
    found = {}
    for step, path in checkpoints.items():
        if first <= step <= last:
            with contextlib.suppress(FileNotFoundError):  # the run has just removed it
                found[step] = digests_of(path)
    return found


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
