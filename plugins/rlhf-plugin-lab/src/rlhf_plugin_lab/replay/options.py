"""Options of a replay: those of the run, those that records need, and those that are changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.training import TrainingCommand
from rlhf_config import Layer, ResolvedOptions, check_paths, parse_flags, read_toml, resolve_options
from rlhf_core import ConfigError
from rlhf_core.plugins import Plugins

from ..recorded.options import LEARNING, LEARNING_OF_STEP, is_within

_RECORDS: Mapping[str, Any] = {
    "checkpoint.every": 1,
    "checkpoint.every_minutes": 0.0,
    "checkpoint.keep": 1_000_000,
    "checkpoint.export": False,
    "observers.use": [],
    "log.progress": "off",
    "log.summary": False,
    "log.tensorboard": False,
    "log.curve": False,
    "log.to": [],
}
"""Options of what a replay records: weights of every step, and nothing for other places. None reaches a weight."""


def options_of(
    command: TrainingCommand[Any],
    plugins: Plugins,
    run: Path,
    *,
    output: Path,
    start: Path | None,
    changed: Sequence[str] = (),
) -> ResolvedOptions[Any]:
    """Return the options of ``run`` with which its steps after ``start`` are done again in the folder ``output``.

    Args:
        start: checkpoint to continue from; None: the run's beginning.
        changed: words of a command line, as ``--actor.adam.lr 0.01``.

    Raises:
        ConfigError: an option is wrong, may not be changed, or needs a file that is not there.
    """
    values = {**_RECORDS, "output": str(output)}
    if start is not None:
        values["resume.checkpoint"] = str(start)
    flags = parse_flags(changed)
    layers = [
        read_toml(command.defaults, defaults=True),
        read_toml(run / "config.toml"),
        Layer.of_paths(values, "rlhf replay"),
        flags,
    ]
    if changed and command.options.command == "train":
        layers.append(Layer.of_paths({"rollout.max_mismatch": "none"}, "rlhf replay"))
    for path in flags.origins:
        # Before anything is resolved: that an option is given here matters more than whether its value is right.
        _refuse_given(path)
    resolved = resolve_options(layers, plugins, command.options)
    for path in flags.origins:
        _refuse_sampling(path, resolved)
    check_paths(resolved, layers, command.options)
    return resolved


def _refuse_given(path: str) -> None:
    if path == "output":
        raise ConfigError(
            "rlhf replay --output: the replay's runs are kept elsewhere. Give --out FOLDER in place of --output",
            code="lab/output-elsewhere",
        )
    section = path.partition(".")[0]
    if section in ("resume", "checkpoint", "log", "observers", "eval"):
        raise ConfigError(
            f"rlhf replay --{path}: expected an option that changes what is learned; a replay itself decides on "
            f"{section}. Leave it out.",
            code="lab/option-not-replayed",
        )


def _refuse_sampling(path: str, resolved: ResolvedOptions[Any]) -> None:
    """Check that an option changes what is learned from samples, and not the samples."""
    filters = resolved.selections.get("rollout.filters", ())
    allowed = (*LEARNING, *LEARNING_OF_STEP, *(one.section for one in filters))
    if not is_within(path, allowed):
        raise ConfigError(
            f"rlhf replay --{path}: expected an option of {', '.join(LEARNING)} or "
            f"{', '.join(LEARNING_OF_STEP)}; this one says which samples there are, or who computes, and a replay "
            "learns from the samples that the run had. Start a run with it: rlhf train.",
            code="lab/option-of-samples",
        )
