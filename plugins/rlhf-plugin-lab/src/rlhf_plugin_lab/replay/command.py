"""Command ``rlhf replay``: a span of a run trained again, to the bit or with options changed on the same samples."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_cli.runs import planned, training_command
from rlhf_cli.tables import HELP, Form, print_table
from rlhf_cli.training import TrainingCommand
from rlhf_config import FlagParser, ResolvedOptions
from rlhf_core import ConfigError, RolloutError
from rlhf_core.media import MediaStore
from rlhf_core.outside.json_reader import parse_object
from rlhf_core.plugins import Plugins, load

from ..recorded.metrics import Metrics, read_metrics
from ..recorded.problems import Problems
from ..recorded.replay_note import CHANGED, ORIGINAL, write_note
from .behavior import Behavior, ClipRange
from .here import HereRuntime
from .kept import KeepingExecutor, Kept, RecordedExecutor, with_component
from .options import options_of
from .playing import play
from .report import changes_table, sameness_table
from .sameness import StepCheck, checks_of
from .span import Span, checkpoints_of, find_span

_EXECUTOR, _RUNTIME = "rollout.executor", "runtime.name"
_MISMATCH = "mismatch/"
"""Beginning of metrics of the difference between the sampler's log-probs and the learner's."""


def parser() -> FlagParser:
    """Return the parser of the command's own flags; all others are options of the run."""
    own = FlagParser(
        prog="rlhf replay",
        usage="rlhf replay RUN --from STEP --to STEP [--out FOLDER] [--table FORM] [options of the run that change]",
        description="Train steps of a run again from its checkpoint, and say whether each is as recorded, to the bit. "
        "With options of the run, such as --actor.adam.lr 0.01, train them a second time with these on the same "
        "samples, and say what that does to gradients, ratios and weights. Exit code 0: as recorded, 1: not.",
    )
    own.add_argument("run", type=Path, metavar="RUN", help="run folder (a run's --output)")
    own.add_argument(
        "--from",
        type=int,
        required=True,
        dest="first",
        metavar="STEP",
        help="first step to train again",
    )
    own.add_argument(
        "--to",
        type=int,
        required=True,
        dest="last",
        metavar="STEP",
        help="last step to train again",
    )
    own.add_argument(
        "--out",
        type=Path,
        help="folder for the runs original and changed, for rlhf view; unset: they are not kept",
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
            f"rlhf replay --out {flags.out}: it already exists; expected a new folder. Choose another --out.",
            code="output/not-empty",
        )
    plugins = load()
    if flags.out is not None:
        return _checked(span, changed, flags.out, flags.table, plugins)
    with tempfile.TemporaryDirectory(prefix="rlhf-replay-") as folder:
        return _checked(span, changed, Path(folder) / "runs", flags.table, plugins)


def _checked(span: Span, changed: list[str], out: Path, form: Form, plugins: Plugins) -> int:
    """Say what is wrong with the options before anything is copied or trained, then replay."""
    for line in span.missing:
        print(line, file=sys.stderr)
    command = training_command(span.command, plugins)
    resolve = partial(options_of, command, plugins, span.run, output=out, start=span.start)
    ask_all = bool(changed) and _wants_logprobs(resolve(changed=changed))
    ask_all = ask_all and not _wants_logprobs(resolve())
    if span.start is None:
        return _replay(span, changed, out, form, plugins, ask_all=ask_all)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rlhf-replay-", dir=out.parent) as folder:
        start = max(step for step in span.checkpoints if step < span.first)
        checkpoints = {**span.checkpoints, start: held(span.checkpoints[start], Path(folder))}
        span = replace(span, checkpoints=checkpoints)
        return _replay(span, changed, out, form, plugins, ask_all=ask_all)


def _replay(
    span: Span, changed: list[str], out: Path, form: Form, plugins: Plugins, *, ask_all: bool
) -> int:
    """Do the span, and once more with the changed options, and print the table.

    Args:
        ask_all: the changed options need log-probs that the run does without (``KeepingExecutor``).
    """
    command = training_command(span.command, plugins)
    original, other = out / ORIGINAL, out / CHANGED
    write_note(out, span.run, span.first, span.last, changed)
    resolved = options_of(command, plugins, span.run, output=original, start=span.start)
    kept = Kept()
    if changed:
        keeping = partial(KeepingExecutor, kept=kept, store=_images(original), ask_all=ask_all)
        resolved = with_component(resolved, _EXECUTOR, keeping)
        if _has_rollouts(resolved):
            resolved = with_component(resolved, _RUNTIME, HereRuntime)
    play(command, resolved, plugins, span.last)
    metrics = _metrics(original)
    checks = checks_of(span, metrics, original, without=(_MISMATCH,) if ask_all else ())
    if not changed:
        print_table(sameness_table(checks), form)
    else:
        start = span.start if span.first - 1 in span.checkpoints else None
        start = start or checkpoints_of(original).get(span.first - 1)
        last, shares = _play_changed(command, plugins, span, changed, other, start, kept)
        runs = (metrics, original), (_metrics(other), other)
        print_table(changes_table(replace(span, last=last), *runs, start, shares), form)
    _say(checks, "same metrics, without those of mismatch/," if ask_all else "same metrics")
    return 0 if all(one.same for one in checks) and any(one.known for one in checks) else 1


def _play_changed(
    command: TrainingCommand[Any],
    plugins: Plugins,
    span: Span,
    changed: list[str],
    output: Path,
    start: Path | None,
    kept: Kept,
) -> tuple[int, dict[int, float]]:
    """Do the steps with the changed options, as far as there are samples.

    Returns:
        The last step that was done, and the share of tokens beyond the loss's clip range, by step.

    Raises:
        RolloutError: there are not even those of the first step.
    """
    resolved = options_of(command, plugins, span.run, output=output, start=start, changed=changed)
    heard = None
    if _has_rollouts(resolved):
        heard = Behavior(ClipRange(resolved.one("algo.loss.policy")))
        recorded = partial(RecordedExecutor, kept=kept, store=_images(output))
        resolved = with_component(resolved, _EXECUTOR, recorded)
        resolved = with_component(resolved, _RUNTIME, partial(HereRuntime, hear=heard.hear))
    last = span.last
    try:
        play(command, resolved, plugins, last, heard)
    except RolloutError as error:
        if not kept.ran_out:
            raise
        why = (
            f"with the changed options a step needs other samples than the run had for it: {error} Where filters or "
            "rewards drop other groups, later prompts move to other steps"
        )
        last = _metrics(output).last_step
        if last < span.first:
            raise RolloutError(
                f"rlhf replay: {why}. That is so at step {span.first} already, where no other --to helps: leave out "
                "the changed option that asks for other samples.",
                code="lab/samples-differ",
            ) from error
        print(f"steps {last + 1} to {span.last} are missing: {why}.", file=sys.stderr)
    return last, {} if heard is None else heard.shares


def _has_rollouts(resolved: ResolvedOptions[Any]) -> bool:
    return resolved.optional(_EXECUTOR) is not None


def _wants_logprobs(resolved: ResolvedOptions[Any]) -> bool:
    """Return whether every sample needs the sampler's log-probs."""
    return _has_rollouts(resolved) and planned(resolved).demands.rollout_logprobs


def _images(run: Path) -> MediaStore:
    return MediaStore(run / "media")


def _metrics(folder: Path) -> Metrics:
    return read_metrics(folder / "metrics.jsonl", Problems())


def _say(checks: Sequence[StepCheck], metrics: str) -> None:
    """Print on stderr whether the span without changed options was as recorded, of which so many metrics count."""
    without = [one.step for one in checks if not one.compared]
    if without:
        print(f"no metrics are recorded of step {_listed(without)}", file=sys.stderr)
    wrong = next((one for one in checks if not one.same), None)
    if wrong is not None:
        what = " and ".join(part for part in (wrong.metric, wrong.file) if part)
        said = f"not as recorded: step {wrong.step} is the first that differs, in {what}"
    elif not any(one.known for one in checks):
        said = "nothing is recorded of the span to compare with"
    else:
        at = f"at step {_listed([one.step for one in checks if one.compared])}"
        every = metrics if any(one.compared for one in checks) else "no metrics"
        known = [one.step for one in checks if one.files is not None]
        weights = (
            f"same weights to the bit at step {_listed(known)}"
            if known
            else "the run has no checkpoint in the span to compare weights with"
        )
        said = f"as recorded: {every} {at if without else 'at every step'}; {weights}"
    print(said, file=sys.stderr)


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))


def held(checkpoint: Path, folder: Path) -> Path:
    """Return a checkpoint with the same files in a folder: links to them, or copies on another disk.

    It stays while the run goes on, which removes its own.

    Raises:
        ConfigError: the run removed it meanwhile.
        OSError: it cannot be copied.
    """
    place = folder / checkpoint.name
    try:
        shutil.copytree(checkpoint, place, copy_function=_link_or_copy)
        names = parse_object((place / "manifest.json").read_bytes())["files"]
        whole = all((place / name).is_file() for name in names)
    except OSError:  # shutil.Error is one
        if (checkpoint / "manifest.json").is_file():
            raise
        whole = False
    if not whole:
        raise ConfigError(
            f"{checkpoint}: expected the checkpoint from which the span is reached; the run, which goes on, has "
            "removed it meanwhile. Choose a later --from, or have the next run keep more with --checkpoint.keep.",
            code="lab/checkpoint-gone",
        )
    return place


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)
    return target
