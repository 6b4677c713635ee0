"""Parameters as an optimizer gets them: with their names, and with the knowledge which of them are gains of norms.

The gain of a norm is a row of factors, one for each channel, and has two axes where each head has factors of its own
(Cohere's norms of queries and keys). Whether a parameter is a matrix is therefore decided by the module that owns it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

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
    gains: frozenset[str] = frozenset()
    """Names of the parameters of norms, whatever their shape."""

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
        return NamedParameters(tuple(pair for pair in self.pairs if keep(*pair)), self.gains)

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
