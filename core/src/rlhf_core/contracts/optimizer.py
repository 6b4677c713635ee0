"""Optimizers: parameter groups from named parameters, then a torch optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that share options. Every trainable parameter is in exactly one group."""

    name: str
    """Shown in the log: ``decay``, ``no_decay``, ..."""
    named_parameters: tuple[tuple[str, torch.nn.Parameter], ...]
    options: dict[str, Any] = field(default_factory=dict)
    """What this group overrides: ``lr``, ``weight_decay``, ..."""


class Optimizer(Protocol):
    """The component; the torch optimizer is what it makes."""

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> list[ParameterGroup]: ...

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer. Each torch parameter group carries ``lr``, which the schedule scales."""
        ...
