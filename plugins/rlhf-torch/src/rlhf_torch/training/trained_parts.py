"""The components of a trained role, built and checked: its objective, its optimizer, the parameter groups."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import Optimizer, ParameterGroup, RoleSpec
from rlhf_core.objective import BuiltPolicyObjective, BuiltValueObjective, build_objective
from rlhf_core.plugins import Plugins

log = logging.getLogger(__name__)


class TrainedParts(NamedTuple):
    """The components of a trained role."""

    objective: BuiltPolicyObjective | BuiltValueObjective
    optimizer: Optimizer


def trained_parts(spec: RoleSpec, plugins: Plugins) -> TrainedParts:
    """Build what the spec of a trained role names.

    Raises:
        ConfigError: it has no optimizer, or a value objective without a value head.
    """
    assert spec.objective is not None, "a role without an objective only scores"
    objective = build_objective(spec.objective, plugins)
    if isinstance(objective, BuiltValueObjective) and spec.head != "value":
        raise ConfigError(f"the {spec.role} has a value objective but no value head")
    if spec.optimizer is None:
        raise ConfigError(f"the {spec.role} is trained but has no optimizer")
    return TrainedParts(objective, plugins.build(spec.optimizer))


def require_trainable(role: str, names: Collection[str]) -> None:
    """Refuse to train nothing.

    Raises:
        ConfigError: there are no names of trainable parameters.
    """
    if not names:
        raise ConfigError(f"the {role} has no trainable parameter; its adapter froze all")


def check_groups(groups: Sequence[ParameterGroup], names: Collection[str]) -> None:
    """Refuse parameter groups that do not hold every trainable parameter exactly once.

    Raises:
        PluginError: with the number of those that are in none or in several.
    """
    placed = [name for group in groups for name, _ in group.named_parameters]
    missing, twice = set(names) - set(placed), len(placed) - len(set(placed))
    if missing or twice:
        raise PluginError(
            f"the optimizer's groups must hold every trainable parameter once; {len(missing)} of {len(names)} are in "
            f"none{', such as ' + min(missing) if missing else ''}, {twice} in several"
        )


def log_groups(role: str, groups: Sequence[ParameterGroup]) -> None:
    """Say what each parameter group holds."""
    for group in groups:
        log.info("optimizer of the %s, group %s", role, group.describe())


def peak_lrs(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return each parameter group's learning rate as it was made, which the schedule scales.

    Raises:
        PluginError: a parameter group has none.
    """
    if any("lr" not in group for group in optimizer.param_groups):
        raise PluginError(
            f"{type(optimizer).__name__}: a parameter group without 'lr'; the schedule scales it"
        )
    return [float(group["lr"]) for group in optimizer.param_groups]
