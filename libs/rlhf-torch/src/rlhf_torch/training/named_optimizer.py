"""The optimizer component of a role: named where it answers something else than its kind promises."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlhf_core import wrong_answer
from rlhf_core.contracts import Optimizer, ParameterGroup


@dataclass(frozen=True, slots=True)
class NamedOptimizer:
    """An optimizer component whose answers are checked. What it raises keeps its type."""

    optimizer: Optimizer
    label: str
    """Component and origin, for messages."""

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> list[ParameterGroup]:
        """Return the component's parameter groups.

        Raises:
            PluginError: it returned something else.
        """
        groups: Any = self.optimizer.parameter_groups(named_parameters)
        is_list = isinstance(groups, list | tuple)
        if not is_list or not all(isinstance(group, ParameterGroup) for group in groups):
            raise wrong_answer(
                f"{self.label}: parameter_groups()",
                groups,
                "a list of rlhf_core.contracts.ParameterGroup",
            )
        return list(groups)

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the component's torch optimizer.

        Raises:
            PluginError: it returned something else.
        """
        made: Any = self.optimizer.create(groups)
        if not isinstance(made, torch.optim.Optimizer):
            raise wrong_answer(f"{self.label}: create()", made, "a torch.optim.Optimizer")
        return made


def class_of(optimizer: Optimizer) -> str:
    """Return the name of the component's own class, for messages."""
    own = optimizer.optimizer if isinstance(optimizer, NamedOptimizer) else optimizer
    return type(own).__name__
