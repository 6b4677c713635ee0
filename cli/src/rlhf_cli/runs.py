"""A run as it would be built, for commands of plugins: read like ``rlhf train`` reads it, with nothing built.

Public to plugins, as ``docs/plugins.md`` says. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.config import Resolved, RunConfig, Selection, resolve
from rlhf_core.contracts import ComponentRef, RuntimeSpec
from rlhf_core.learning.demands import Demands, demands_of
from rlhf_core.learning.roles import max_length, runtime_spec
from rlhf_core.plugins import Plugins

from .train import layers_of, split_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What a run consists of, before anything exists."""

    run: RunConfig
    """The core's options."""
    selections: Mapping[str, tuple[Selection, ...]]
    """The chosen components by selector path, with their validated options."""
    runtime: ComponentRef
    spec: RuntimeSpec
    """What the runtime would be asked to build."""
    demands: Demands
    """Which models there are, and which passes each step makes."""
    max_length: int
    """Tokens of the longest sequence."""


def read_run(words: Sequence[str], plugins: Plugins) -> PlannedRun:
    """Return the run that ``rlhf train WORDS`` would start. Whether files exist is not looked at.

    Raises:
        ConfigError: the configuration is wrong.
    """
    resolved = resolve(layers_of(split_arguments(words)), plugins)
    return planned(resolved)


def planned(resolved: Resolved) -> PlannedRun:
    """Return what a configuration asks for."""
    demands = demands_of(resolved)
    return PlannedRun(
        run=resolved.run,
        selections=resolved.selections,
        runtime=resolved.one("runtime.name").ref("rlhf_runtimes"),
        spec=runtime_spec(
            resolved, demands, total_steps=resolved.run.train.steps or 1, eos_token_ids=()
        ),
        demands=demands,
        max_length=max_length(resolved.run),
    )
