"""Command ``rlhf replay``: a span of a run trained again, to the bit or with options changed on the same samples."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_cli.runs import planned, training_command
from rlhf_cli.tables import HELP, Form, print_table
from rlhf_cli.training import TrainingCommand
from rlhf_config import ResolvedOptions
from rlhf_core import ConfigError, RolloutError
from rlhf_core.plugins import Plugins, load

from ..flags import FlagParser
from ..recorded.metrics import Metrics, read_metrics
from ..recorded.problems import Problems
from .kept import KeepingExecutor, Kept, RecordedExecutor, with_executor
from .options import options_of
from .playing import play
from .report import changes_table, sameness_table
from .sameness import StepCheck, checks_of
from .span import Span, checkpoints_of, find_span

_MISMATCH = "mismatch/"
"""Beginning of metrics of the difference between the sampler's log-probs and the learner's."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's own flags; all others are options of the run."""
    own = FlagParser(
        prog="rlhf replay",
        usage="rlhf replay RUN --from STEP --to STEP [--out FOLDER] [--table FORM] [options of the run that change]",
        description="Train steps of a run again from its checkpoint, and say whether each is as recorded, to the bit. "
        "With options of the run, such as --actor.adam.lr 0.01, train them a second time with these on the same "
        "samples, and say what that does to gradients, ratios and weights. Exit code 0: as recorded, 1: not.",
        allow_abbrev=False,
    )
    own.add_argument("run", type=Path, metavar="RUN", help="run folder (a run's --output)")
    own.add_argument(
        "--from", type=int, required=True, dest="first", metavar="STEP", help="first step"
    )
    own.add_argument("--to", type=int, required=True, dest="last", metavar="STEP", help="last step")
    own.add_argument(
        "--out",
        type=Path,
        help="folder to keep the runs in, as original and changed, for rlhf view",
    )
    own.add_argument(
        "--table", type=Form, choices=list(Form), default=Form.TEXT, metavar="FORM", help=HELP
    )
    return own


def main(arguments: Sequence[str]) -> int:
    """Replay a span and print its table; return the exit code: 0 where the unchanged span is as recorded, else 1.

    Raises:
        ConfigError: a flag is wrong, or the span or the options cannot be replayed.
        RLHFError: the run failed again.
    """
    flags, changed = parser().parse_known_args(list(arguments))
    span = find_span(flags.run, flags.first, flags.last)
    if flags.out is not None and flags.out.exists():
        raise ConfigError(
            f"rlhf replay --out {flags.out}: it is there already; expected a new folder. Choose another --out."
        )
    plugins = load()
    if flags.out is not None:
        return _replay(span, changed, flags.out, flags.table, plugins)
    with tempfile.TemporaryDirectory(prefix="rlhf-replay-") as folder:
        return _replay(span, changed, Path(folder) / "runs", flags.table, plugins)


def _replay(span: Span, changed: list[str], out: Path, form: Form, plugins: Plugins) -> int:
    command = training_command(span.command, plugins)
    original, other = out / "original", out / "changed"
    resolved = options_of(command, plugins, span.run, output=original, start=span.start)
    ask_all = False
    if changed:  # what is wrong with the options is said before anything is trained
        wanted = options_of(
            command, plugins, span.run, output=other, start=span.start, changed=changed
        )
        ask_all = _wants_logprobs(wanted) and not _wants_logprobs(resolved)
    kept = Kept()
    keeping = partial(KeepingExecutor, kept=kept, ask_all=ask_all)
    play(command, with_executor(resolved, keeping), plugins, span.last)
    metrics = _metrics(original)
    checks = checks_of(span, metrics, original, without=(_MISMATCH,) if ask_all else ())
    if not changed:
        print_table(sameness_table(checks), form)
    else:
        start = span.start if span.first - 1 in span.checkpoints else None
        start = start or checkpoints_of(original).get(span.first - 1)
        _play_changed(command, plugins, span, changed, other, start, kept)
        table = changes_table(span, (metrics, original), (_metrics(other), other), start)
        print_table(table, form)
    _say(checks, "same metrics, without those of mismatch/," if ask_all else "same metrics")
    return 0 if all(one.same for one in checks) else 1


def _play_changed(
    command: TrainingCommand[Any],
    plugins: Plugins,
    span: Span,
    changed: list[str],
    output: Path,
    start: Path | None,
    kept: Kept,
) -> None:
    resolved = options_of(command, plugins, span.run, output=output, start=start, changed=changed)
    if resolved.optional("rollout.executor") is not None and not kept.episodes:
        raise ConfigError(
            f"{span.run}: expected a runtime that plays rollouts in the process of the run, whose samples can be kept; "
            "this one plays them elsewhere, so no option can be changed on the same samples. Without changed options "
            "the span can be replayed."
        )
    recorded = with_executor(resolved, partial(RecordedExecutor, kept=kept))
    try:
        play(command, recorded, plugins, span.last)
    except RolloutError as error:
        raise RolloutError(
            f"rlhf replay: with the changed options a step needs other samples than the run had for it: {error} "
            "Where filters or rewards drop other groups, later prompts move to other steps: choose an earlier --to."
        ) from error


def _wants_logprobs(resolved: ResolvedOptions[Any]) -> bool:
    """Return whether every sample needs the sampler's log-probs."""
    if resolved.optional("rollout.executor") is None:
        return False
    return planned(resolved).demands.rollout_logprobs


def _metrics(folder: Path) -> Metrics:
    return read_metrics(folder / "metrics.jsonl", Problems())


def _say(checks: Sequence[StepCheck], metrics: str) -> None:
    """Print on stderr whether the span without changed options was as recorded, of which so many metrics count."""
    wrong = next((one for one in checks if not one.same), None)
    if wrong is not None:
        what = " and ".join(part for part in (wrong.metric, wrong.file) if part)
        print(
            f"not as recorded: step {wrong.step} is the first that differs, in {what}",
            file=sys.stderr,
        )
        return
    known = [one.step for one in checks if one.files is not None]
    weights = (
        f"same weights to the bit at step {', '.join(map(str, known))}"
        if known
        else "the run has no checkpoint in the span to compare weights with"
    )
    print(f"as recorded: {metrics} at every step; {weights}", file=sys.stderr)
