"""The first step of a configuration, done in a folder of its own so that its tokens can be audited before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.runs import run_layers, training_command
from rlhf_config import Layer, ResolvedOptions, check_paths, resolve_options
from rlhf_core import ConfigError
from rlhf_core.plugins import Plugins

from ..replay.playing import play
from .loading import COMMAND

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


def do_first_step(config: Path, words: Sequence[str], folder: Path, plugins: Plugins) -> None:
    """Do the first step of ``rlhf train -c CONFIG WORDS`` in a new folder, with tokens of up to four prompts.

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
