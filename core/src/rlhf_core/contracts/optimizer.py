"""Optimizers: parameter groups from named parameters, then a torch optimizer.

Parameters come with their names, and with the knowledge which of them are gains of norms. The gain of a norm is a row
of factors, one for each channel, and has two axes where each head has factors of its own (Cohere's norms of queries and
keys). Whether a parameter is a matrix is therefore decided by the module that owns it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, overload

if TYPE_CHECKING:
    import torch

Named = tuple[str, "torch.nn.Parameter"]

_NORM = re.compile(r"Norm(Gated|\d+d)?$")
"""Endings of the names of norm classes: ``LayerNorm``, ``LlamaRMSNorm``, ``RMSNormGated``, ``BatchNorm1d``. A head
whose weights are normalized (``NormHead``) is none."""


@dataclass(frozen=True, slots=True)
class NamedParameters(Sequence[Named]):
    """Pairs of a name and a parameter, in order."""

    pairs: tuple[Named, ...]
    """Name and parameter of each trained parameter, in the model's order."""
    gains: frozenset[str] = frozenset()
    """Names of the parameters of norms, whatever their shape."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Factor of the learning rate of parameters by name, for those whose factor is not 1. The backend applies it."""

    @classmethod
    def of(cls, pairs: Iterable[Named]) -> NamedParameters:
        """Return ``pairs`` as ``NamedParameters``; bare pairs count as having no norms."""
        return pairs if isinstance(pairs, NamedParameters) else cls(tuple(pairs))

    def is_matrix(self, name: str, parameter: torch.nn.Parameter) -> bool:
        """Return whether a parameter maps vectors or tokens to vectors, instead of scaling or shifting channels.

        A matrix has two or more axes (stacked matrices, such as experts, have three) and does not belong to a norm.
        """
        return parameter.dim() >= 2 and name not in self.gains

    def where(self, keep: Callable[[str, torch.nn.Parameter], bool]) -> NamedParameters:
        """Return the pairs that ``keep`` is true of."""
        return replace(self, pairs=tuple(pair for pair in self.pairs if keep(*pair)))

    def __iter__(self) -> Iterator[Named]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, index: int) -> Named: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Named, ...]: ...
    def __getitem__(self, index: int | slice) -> Named | tuple[Named, ...]:
        return self.pairs[index]


def norm_parameters(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the parameters that norms own: modules whose class is named a norm, or derived from one."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if any(_NORM.search(kind.__name__) for kind in type(module).__mro__)
        for name, _ in module.named_parameters(recurse=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that share options. Every trainable parameter is in exactly one parameter group."""

    name: str
    """Shown in the log: ``decay``, ``no_decay``, ..."""
    named_parameters: tuple[tuple[str, torch.nn.Parameter], ...]
    """Name and parameter of each of the group."""
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

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer. Each torch parameter group carries ``lr``, which the schedule scales."""
