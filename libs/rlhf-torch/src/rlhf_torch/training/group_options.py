"""Values of an optimizer's parameter groups: those that the run's options give, and those that updates change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch.optim import Optimizer

from rlhf_core import CheckpointError

NOT_SAVED = ("params", "lr", "param_names")
"""The schedule sets the learning rate."""

GroupOptions = list[dict[str, Any]]


def group_options(optimizer: Optimizer) -> GroupOptions:
    """Return the values of each parameter group but its parameters and the learning rate."""
    return [
        {key: deepcopy(value) for key, value in group.items() if key not in NOT_SAVED}
        for group in optimizer.param_groups
    ]


def changed_options(optimizer: Optimizer, initial: GroupOptions) -> GroupOptions:
    """Return what updates have changed in each group, such as a count of steps; that is state, and is saved.

    Args:
        initial: the groups as the run's options made them.
    """
    return [
        {key: value for key, value in now.items() if key not in before or before[key] != value}
        for now, before in zip(group_options(optimizer), initial, strict=True)
    ]


def restore_changed(
    optimizer: Optimizer, saved: Sequence[Mapping[str, Any]], where: object
) -> None:
    """Put back what ``changed_options`` returned. Everything else is as this run's options say, which may be others.

    Raises:
        CheckpointError: the optimizer has another number of groups.
    """
    groups = optimizer.param_groups
    if len(saved) != len(groups):
        raise CheckpointError(
            f"{where}: its optimizer had {len(saved)} parameter groups, this one has {len(groups)}; resume with the "
            "optimizer of the run that was saved",
            code="checkpoint/other-groups",
        )
    for group, values in zip(groups, saved, strict=True):
        for key, value in values.items():
            group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
