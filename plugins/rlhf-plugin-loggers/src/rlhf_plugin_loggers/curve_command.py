"""The command ``rlhf curve``: the learning curve of runs, drawn again from their records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_config import FlagParser
from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import BrokenJson

from .curve import FILE_NAME, save_curve
from .history import read_history

METRICS = "metrics.jsonl"


def parser() -> FlagParser:
    """Return the parser of the command's words."""
    own = FlagParser(
        prog="rlhf curve",
        description=f"Draw {FILE_NAME} into run folders again, from their {METRICS}. A run has no current curve "
        "while it is going on, if it was killed, or with --log.curve false.",
    )
    own.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folder (a run's --output)"
    )
    return own


def draw(words: Sequence[str]) -> int:
    """Draw the curves, print where they are, and return the exit code 0.

    Raises:
        ConfigError: a folder has no metrics, or none of which there is a curve.
        StorageError: a file cannot be written.
    """
    for run in parser().parse_args(list(words)).runs:
        print(_drawn(run))
    return 0


def _drawn(run: Path) -> Path:
    path = run / METRICS
    if not path.is_file():
        raise ConfigError(
            f"{run}: it has no {METRICS}; expected a run's --output, such as runs/run",
            code="run/not-a-run",
        )
    try:
        history = read_history(path)
    except (BrokenJson, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: expected the metrics of a run: {error!r}", code="lab/metrics-unreadable"
        ) from error
    if not history.reward.steps and not history.learned:
        raise ConfigError(
            f"{path}: expected a reward, a loss or an accuracy to draw; the run has finished no step with one yet",
            code="lab/nothing-to-draw",
        )
    target = run / FILE_NAME
    save_curve(history, target, title=run.resolve().name)
    return target
