"""Planned run for commands of plugins: the configuration, read as ``rlhf train`` reads it, with nothing built.

This module is public to plugins (``docs/plugins.md``) and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.config import Resolved, RunConfig, Selection, resolve
from rlhf_core.contracts import ComponentRef, RuntimeSpec
from rlhf_core.learning.demands import Demands, demands_of
from rlhf_core.learning.roles import max_length, runtime_spec
from rlhf_core.plugins import Plugins

from .train import DEFAULTS
from .training import layers_of, split_arguments


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


def read_run(words: Sequence[str], plugins: Plugins) -> PlannedRun:
    """Return the run that ``rlhf train WORDS`` would start, without a check that its files exist.

    Raises:
        ConfigError: the configuration is wrong.
    """
    resolved = resolve(layers_of(split_arguments(words), DEFAULTS), plugins)
    return planned(resolved)


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
        max_length=max_length(resolved.run),
    )
