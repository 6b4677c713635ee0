"""Optimizers: parameter groups from named parameters, then a torch optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that share options. Every trainable parameter is in exactly one parameter group."""

    name: str
    """Shown in the log: ``decay``, ``no_decay``, ..."""
    named_parameters: tuple[tuple[str, torch.nn.Parameter], ...]
    options: dict[str, Any] = field(default_factory=dict)
    """Options that this parameter group overrides: ``lr``, ``weight_decay``, ..."""

    def describe(self) -> str:
        """Return one line: name, counts, options, and the parameters, with the layers of a stack as one name.

        ``decay (15 parameters, 106,880 numbers; weight_decay=0.1): embed.weight, layers.*.up_proj.weight (2), ...``
        """
        count = sum(parameter.numel() for _, parameter in self.named_parameters)
        sizes = f"{len(self.named_parameters)} parameters, {count:,} numbers"
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        alike = Counter(_without_numbers(name) for name, _ in self.named_parameters)
        names = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in alike.items())
        return f"{self.name} ({sizes}{'; ' if options else ''}{options}): {names}"


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


class Optimizer(Protocol):
    """The component, which makes a torch optimizer.

    A backend may call ``create`` several times, also for trial parameters of its own. Between steps it may replace the
    parameters of a parameter group, by slices of them or by one after the other. All that an optimizer remembers of a
    parameter must therefore be in the torch optimizer's ``state``.
    """

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]
    ) -> list[ParameterGroup]:
        """Put every trainable parameter into one parameter group.

        Args:
            named_parameters: pairs of name and parameter. A backend gives ``NamedParameters``, which also know which
                parameters are matrices; others may give bare pairs, and ``NamedParameters.of`` takes both.
        """
        ...

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer. Each torch parameter group carries ``lr``, which the schedule scales."""
        ...
