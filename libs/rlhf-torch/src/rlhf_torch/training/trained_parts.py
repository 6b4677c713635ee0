"""The components of a trained role, built and checked: its objective, its optimizer, the parameter groups."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import NamedParameters, Optimizer, ParameterGroup, RoleSpec
from rlhf_core.objective import (
    BuiltObjective,
    BuiltScoreObjective,
    BuiltValueObjective,
    build_objective,
)
from rlhf_core.plugins import Plugins

from .named_optimizer import NamedOptimizer, class_of

log = logging.getLogger(__name__)

RATE_FACTOR = "rate_factor"
"""Key of a parameter group with the factor of its learning rate, if that is not 1."""


class TrainedParts(NamedTuple):
    """The components of a trained role."""

    objective: BuiltObjective
    optimizer: Optimizer


def trained_parts(spec: RoleSpec, plugins: Plugins) -> TrainedParts:
    """Build the objective and the optimizer that the spec of a trained role names.

    Raises:
        ConfigError: the spec has no optimizer, or an objective that needs another head.
    """
    assert spec.objective is not None, "a role without an objective only scores"
    objective = build_objective(spec.objective, plugins)
    if isinstance(objective, BuiltValueObjective) and spec.head != "value":
        raise ConfigError(
            f"the {spec.role} has a value objective but no value head", code="plugin/no-value-head"
        )
    if isinstance(objective, BuiltScoreObjective) != (spec.head == "score"):
        raise ConfigError(
            f"the {spec.role} has the head {spec.head}; a ranking or step-label objective, and no other, needs score",
            code="plugin/wrong-head",
        )
    if spec.optimizer is None:
        raise ConfigError(
            f"the {spec.role} is trained but has no optimizer", code="plugin/no-optimizer"
        )
    label = plugins.get(spec.optimizer.kind, spec.optimizer.name).label
    return TrainedParts(objective, NamedOptimizer(plugins.build(spec.optimizer), label))


def require_trainable(role: str, names: Collection[str]) -> None:
    """Refuse a trained role without a trainable parameter.

    Raises:
        ConfigError: ``names`` is empty.
    """
    if not names:
        raise ConfigError(
            f"the {role} has no trainable parameter; its adapter froze all",
            code="training/nothing-trainable",
        )


def parameter_groups(optimizer: Optimizer, named: NamedParameters) -> list[ParameterGroup]:
    """Return the optimizer's parameter groups, each split by the factors of the learning rate; a part with a factor has
    the name of its group, and the factor among its options.

    Raises:
        PluginError: some parameters are in no parameter group or in several.
    """
    groups = optimizer.parameter_groups(named)
    who = optimizer.label if isinstance(optimizer, NamedOptimizer) else class_of(optimizer)
    check_groups(groups, [name for name, _ in named], who)
    found = []
    for group in groups:
        parts: dict[float, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in group.named_parameters:
            parts.setdefault(named.rates.get(name, 1.0), []).append((name, parameter))
        for rate, pairs in sorted(parts.items(), key=lambda part: part[0] != 1.0):
            options = group.options if rate == 1.0 else {**group.options, RATE_FACTOR: rate}
            found.append(replace(group, named_parameters=tuple(pairs), options=options))
    return found


def check_groups(groups: Sequence[ParameterGroup], names: Collection[str], who: str) -> None:
    """Refuse parameter groups of the optimizer ``who`` that do not hold every trainable parameter exactly once.

    Raises:
        PluginError: some parameters are in no parameter group or in several; the message has their numbers.
    """
    placed = [name for group in groups for name, _ in group.named_parameters]
    missing, twice = set(names) - set(placed), len(placed) - len(set(placed))
    if missing or twice:
        raise PluginError(
            f"{who}: parameter_groups() has to place every trainable parameter once; {len(missing)} of {len(names)} "
            f"are in none{', such as ' + min(missing) if missing else ''}, {twice} in several",
            code="optimizer/groups",
        )


def log_groups(role: str, groups: Sequence[ParameterGroup]) -> None:
    """Log the parameters and options of each parameter group."""
    for group in groups:
        log.info("optimizer of the %s, group %s", role, group.describe())


def peak_lrs(optimizer: torch.optim.Optimizer, groups: Sequence[ParameterGroup]) -> list[float]:
    """Return the learning rate of each parameter group, which the schedule scales: that of its creation, times the
    group's factor.

    Args:
        groups: what the optimizer was created with.

    Raises:
        PluginError: a parameter group has no ``lr``, or has lost its factor.
    """
    made = optimizer.param_groups
    if any("lr" not in group for group in made):
        raise PluginError(
            f"{type(optimizer).__name__}: a parameter group without 'lr', which the schedule scales; set it "
            "in create()",
            code="optimizer/no-lr",
        )
    wanted = {float(group.options.get(RATE_FACTOR, 1.0)) for group in groups}
    factors = [float(group.get(RATE_FACTOR, 1.0)) for group in made]
    if set(factors) != wanted:
        raise PluginError(
            f"{type(optimizer).__name__}: its groups have the factors of learning rates {sorted(set(factors))}; "
            f"expected {sorted(wanted)}. Pass on all options of each ParameterGroup in create()",
            code="optimizer/options-lost",
        )
    return [float(group["lr"]) * factor for group, factor in zip(made, factors, strict=True)]
