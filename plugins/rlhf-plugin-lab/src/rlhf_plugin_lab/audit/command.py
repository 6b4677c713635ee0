"""Command ``rlhf audit``: which recorded log-probs differ from a plain forward, and which cause explains it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.runs import run_layers, training_command
from rlhf_config import FlagParser, Layer, ResolvedOptions, check_paths, resolve_options
from rlhf_core import ConfigError
from rlhf_core.plugins import Plugins
from rlhf_core.plugins import load as load_plugins

from ..paper.contents import CONFIG, require_run
from ..replay.playing import play
from .case import Case
from .forward import Reading
from .hypotheses import HYPOTHESES, hypotheses_for
from .loading import (
    COMMAND,
    ends_of,
    first_weights,
    limited,
    load,
    never_sampled,
    options_of,
    require_plain_base,
    sampling_of,
    special_of,
    trained_version,
)
from .precision import BFLOAT16, DTYPES, allowed_of, without_edges
from .sequences import (
    SAMPLER,
    SIDES,
    Recorded,
    has_logprobs,
    read_sequences,
    spread_over,
    with_images,
)
from .verdict import Verdict, judge

_NAME = "rlhf audit"
_RECORDS: Mapping[str, Any] = {
    "observers.use": ["token_files"],
    "log.progress": "off",
    "log.summary": False,
    "log.tensorboard": False,
    "log.curve": False,
    "log.to": [],
    "checkpoint.at_end": False,
    "checkpoint.export": False,
}
"""Options of what the step records, and of nothing that is kept."""
_WANTED: Sequence[Mapping[str, Any]] = (
    {"eval.at_start": False},
    {"rollout.max_mismatch": None},
    {"rollout.filters": []},
    {"rollout.batch_size": 4, "train.batch_size": None},
    {"algo.loss.old_logprobs": "recompute"},
    {"rollout.compared_share": 1.0},
)
"""Options that make the step small and record log-probs of both sides, each where the configuration allows it: one that
would change nothing is refused. None changes how a token is sampled, or by what it is read again."""


def parser() -> FlagParser:
    """Return the parser of the command's flags."""
    own = FlagParser(
        prog="rlhf audit",
        usage="rlhf audit RUN [flags] | rlhf audit CONFIG.toml [flags] [options of the run]",
        description="Recompute the recorded log-probs of sampler and trainer by a plain forward pass in float32, and "
        "name what explains a gap. With a configuration, take its first step with a few prompts in a temporary folder "
        "and audit that step, before you train anything. Exit code 0: no gap beyond the precision, 1: a gap.",
    )
    own.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="run folder with tokens (token_files), or the TOML file of a run that has not begun",
    )
    own.add_argument("--step", type=int, default=1, help="recorded step to check (default 1)")
    own.add_argument(
        "--model",
        type=Path,
        help="folder with the weights at that step; unset: model.path, for step 1",
    )
    own.add_argument(
        "--other",
        type=Path,
        nargs="*",
        default=[],
        help="folder with other weights that sampler or trainer may have had",
    )
    own.add_argument(
        "--dtype", choices=DTYPES, help="number type of the run's parameters (default: model.dtype)"
    )
    own.add_argument(
        "--samples", type=int, default=16, help="number of sequences to recompute (default 16)"
    )
    own.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    return own


def main(arguments: Sequence[str]) -> int:
    """Print the verdict on each side, and return the exit code: 0 for no gap, 1 for one.

    Raises:
        ConfigError: a flag is wrong, tokens or a model are missing, or the run samples as no reading does.
    """
    own, words = parser().parse_known_args(list(arguments))
    if own.samples < 1:
        raise ConfigError(
            f"rlhf audit: --samples is {own.samples}; expected 1 or more", code="usage/not-positive"
        )
    if own.run.is_file():
        verdicts = _audit_before(own, words)
    elif words:
        raise ConfigError(
            f"rlhf audit: unrecognized arguments: {' '.join(words)}. Options of a run go with its TOML file, not with "
            "the folder of one that has begun",
            code="usage/options-of-a-run",
        )
    else:
        require_run(own.run, "rlhf audit")
        verdicts = audit(own)
    if own.as_json:
        print(json.dumps([dataclasses.asdict(each) for each in verdicts], indent=2))
    else:
        for each in verdicts:
            print(_line(each))
    return 0 if all(each.healthy for each in verdicts) else 1


def _audit_before(own: argparse.Namespace, words: list[str]) -> list[Verdict]:
    """Return the verdicts on the first step of a configuration."""
    if own.step != 1:
        raise ConfigError(
            f"rlhf audit {own.run} --step {own.step}: a configuration has its first step alone; name a run's folder",
            code="usage/step-of-a-configuration",
        )
    with tempfile.TemporaryDirectory(prefix="rlhf-audit-") as folder:
        run = Path(folder) / "run"
        do_first_step(own.run, words, run, load_plugins())
        verdicts = audit(argparse.Namespace(**{**vars(own), "run": run}))
    for side in SIDES.keys() - {each.side for each in verdicts}:
        print(
            f"{side}: not compared, as this configuration does not compute its log-probs",
            file=sys.stderr,
        )
    return verdicts


def audit(own: argparse.Namespace) -> list[Verdict]:
    """Return the verdicts on the sides that are recorded."""
    if own.step > 1 and own.model is None:
        raise ConfigError(
            f"rlhf audit: step {own.step} was sampled by trained weights; name their folder with --model",
            code="lab/trained-weights",
        )
    sequences = read_sequences(own.run, own.step, None if own.model else 0)
    options = options_of(own.run)
    require_plain_base(own.run, options)
    sampling = sampling_of(own.run, options)
    folder = own.model or first_weights(options)
    loaded = load(folder)
    ends = ends_of(folder) if sampling["min_new_tokens"] else ()
    pixels = None if loaded.pixels is None else limited(loaded.pixels, options)
    if pixels is not None:
        sequences = with_images(own.run, own.step, sequences)
    case = Case(
        plain=Reading(
            model=loaded.model,
            temperature=sampling["temperature"],
            banned=never_sampled(loaded),
            pixels=pixels,
        ),
        sequences=sequences,
        special=special_of(loaded.model),
        others={str(path): load(path).model for path in own.other},
        base=loaded.base,
    )
    dtype = own.dtype or options.values.get("model.dtype", "")
    if dtype not in DTYPES:
        raise ConfigError(
            f"rlhf audit {own.run}: model.dtype is {dtype or 'not'} in {CONFIG}; expected {' or '.join(DTYPES)}. Name "
            "it with --dtype",
            code="lab/unknown-dtype",
        )

    def plain_of(side: str) -> Reading:
        # The trainer's log-probs are those of all tokens, not within the sampler's set.
        if side != SAMPLER:
            return case.plain
        return dataclasses.replace(case.plain, **sampling, ends=ends)

    verdicts = []
    for side in SIDES:
        recorded = [each for each in sequences if has_logprobs(each, side)]
        if side == SAMPLER:
            recorded = of_version(recorded, trained_version(own.run, own.step))
        if not recorded:
            continue
        of_side = dataclasses.replace(
            case,
            plain=plain_of(side),
            sequences=spread_over(recorded, own.samples),
            recorded=recorded,
        )
        if dtype == BFLOAT16:
            of_side = without_edges(side, of_side)
        verdicts.append(judge(side, of_side, allowed_of(of_side, dtype), hypotheses_for(of_side)))
    if not verdicts:
        raise ConfigError(
            f"rlhf audit {own.run}: expected log-probs of the sampler or the trainer, and none is recorded. Record "
            "both: --rollout.compared_share 1 --algo.loss.old_logprobs recompute --observers.use token_files",
            code="lab/no-logprobs",
        )
    return verdicts


def of_version(recorded: Sequence[Recorded], version: int | None) -> list[Recorded]:
    """Return the sequences that the step's own weights sampled, and say on stderr if that leaves none. A step ahead of
    training was sampled by older ones, which its model does not stand for."""
    kept = [each for each in recorded if version is None or each.versions == {version}]
    if recorded and not kept:
        older = sorted({each for sequence in recorded for each in sequence.versions})
        print(
            f"sampler: not compared, as weights of version {', '.join(map(str, older))} sampled this step and the "
            f"trainer had version {version}",
            file=sys.stderr,
        )
    return kept


def _line(verdict: Verdict) -> str:
    head = f"{verdict.side}: gap {verdict.gap:.3g} nats per action"
    if verdict.healthy:
        return f"{head}, healthy (within {verdict.allowed:.3g})"
    where = f"\n  where: {verdict.pattern}"
    if verdict.cause:
        also = f"; {', '.join(verdict.also)} would explain it as well" if verdict.also else ""
        return f"{head}; {verdict.cause}: {verdict.detail}, which leaves {verdict.left:.3g}{also}{where}"
    return f"{head}; none of {', '.join((*HYPOTHESES, 'dropout'))} explains it (best leaves {verdict.left:.3g}){where}"


def do_first_step(config: Path, words: Sequence[str], folder: Path, plugins: Plugins) -> None:
    """Do the first step of ``rlhf train -c CONFIG WORDS`` in a new folder, so that it can be audited before training.

    It records the tokens of up to four prompts, which the audit reads.

    Raises:
        ConfigError: the configuration is wrong, or names what this machine does not have.
        RLHFError: the step failed.
    """
    command = training_command(COMMAND, plugins)
    base = run_layers(["-c", str(config), *words])
    samples = {"log.samples": 1024, "output": str(folder)}
    layers = [*base, Layer.of_paths({**_RECORDS, **samples}, _NAME)]

    def resolved(layers: list[Layer]) -> ResolvedOptions[Any]:
        return resolve_options(layers, plugins, command.options)

    found = resolved(layers)  # what is wrong with the file itself is said here
    for values in _WANTED:
        longer = [*layers, Layer.of_paths(dict(values), _NAME)]
        try:
            found, layers = resolved(longer), longer
        except ConfigError:
            continue  # the configuration has this already, or cannot have it
    check_paths(found, layers, command.options)
    play(command, found, plugins, 1)
