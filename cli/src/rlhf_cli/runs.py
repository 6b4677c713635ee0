"""Runs for commands of plugins: the configuration, read as the command that trains reads it, with nothing built.

This module is public to plugins (``docs/plugins.md``) and imports no torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlhf_config import (
    Layer,
    Resolved,
    ResolvedOptions,
    RunConfig,
    Selection,
    resolve,
    resolve_options,
)
from rlhf_core import PluginError, UnknownComponent
from rlhf_core.contracts import Accelerator, ComponentRef, RuntimeSpec
from rlhf_core.plugins import Plugins
from rlhf_trainer.learning.demands import Demands, demands_of
from rlhf_trainer.learning.roles import runtime_spec

from . import train
from .training import TrainingCommand, layers_of, split_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """Parts of a run, before any of them is built."""

    run: RunConfig
    """Options of the core."""
    selections: Mapping[str, tuple[Selection, ...]]
    """Selected components by selector path, with their validated options."""
    runtime: ComponentRef
    """Selected runtime with its options."""
    spec: RuntimeSpec
    """Specification of the roles and engines that the runtime would build."""
    demands: Demands
    """Models of the run, and the passes that each step makes with them."""
    max_length: int
    """Number of tokens of the longest sequence."""


def read_run(
    words: Sequence[str], plugins: Plugins, accelerators: Sequence[Accelerator] | None = None
) -> PlannedRun:
    """Return the run that ``rlhf train WORDS`` would start, without a check that its files exist.

    Args:
        accelerators: the GPUs by which ``auto`` chooses an engine; None: those of this machine.

    Raises:
        ConfigError: the configuration is wrong.
    """
    return planned(resolve(run_layers(words, accelerators), plugins, accelerators))


def run_layers(
    words: Sequence[str], accelerators: Sequence[Accelerator] | None = None
) -> list[Layer]:
    """Return the layers of options of ``rlhf train WORDS``.

    Args:
        accelerators: as for ``read_run``.

    Raises:
        ConfigError: a file cannot be read, a flag has no name, or there are fewer GPUs than ``--gpus`` asks for.
    """
    return layers_of(split_arguments(words), train.DEFAULTS, accelerators)


def planned(resolved: Resolved) -> PlannedRun:
    """Return the run that a resolved configuration describes."""
    demands = demands_of(resolved)
    return PlannedRun(
        run=resolved.run,
        selections=resolved.selections,
        runtime=resolved.one("runtime.name").ref("rlhf_runtimes"),
        spec=runtime_spec(
            resolved, demands, total_steps=resolved.run.train.steps or 1, eos_token_ids=()
        ),
        demands=demands,
        max_length=resolved.run.longest_sequence,
    )


def training_command(name: str, plugins: Plugins) -> TrainingCommand[Any]:
    """Return the command ``rlhf NAME``, which trains: that of this package or of a plugin.

    Raises:
        UnknownComponent: no plugin that is installed has a command of that name that trains.
    """
    if name == train.COMMAND.options.command:
        return train.COMMAND
    registry = plugins.registries["rlhf_commands"]
    entry = next((entry for entry in registry if entry.name == name), None)
    command = entry.load() if entry is not None else None
    if isinstance(command, TrainingCommand):
        return command
    known = training_commands(plugins)
    near = difflib.get_close_matches(name, known, n=1)
    got = (
        "a command that does something else"
        if entry is not None
        else "a name that no installed plugin has for a command"
    )
    fix = (
        f"Did you mean {near[0]}?"
        if near
        else "Choose one of these, or install the plugin that has it."
    )
    raise UnknownComponent(
        f"rlhf {name}: expected a command that trains ({', '.join(known)}); got {got}. {fix}",
        code="usage/no-training-command",
    )


def training_commands(plugins: Plugins) -> Mapping[str, TrainingCommand[Any]]:
    """Return every command that trains, by name. Those that cannot be imported are left out; ``training_command`` names
    what is wrong with them."""
    found = {train.COMMAND.options.command: train.COMMAND}
    for entry in plugins.registries["rlhf_commands"]:
        with suppress(PluginError, ImportError):
            command = entry.load()
            if isinstance(command, TrainingCommand):
                found[entry.name] = command
    return dict(sorted(found.items()))


def read_options(
    command: TrainingCommand[Any], words: Sequence[str], plugins: Plugins
) -> ResolvedOptions[Any]:
    """Return the options with which ``rlhf COMMAND WORDS`` would start, without a check that its files exist.

    Raises:
        ConfigError: the configuration is wrong.
    """
    layers = layers_of(split_arguments(words), command.defaults)
    return resolve_options(layers, plugins, command.options)
