"""Parameters, such as stacked experts, that an adapter changes by their own names: the names in PEFT's files.

PEFT puts one wrapper around a module for each of its parameters in ``target_parameters``, the first one innermost. So
the factors of the last one are ``MODULE.lora_A.weight``, those of the one before ``MODULE.base_layer.lora_A.weight``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch import Tensor, nn

TARGETS = "target_parameters"
"""Key of PEFT's config: ends of the names of such parameters."""
UNMATCHED = "The following (rank|alpha)_pattern keys did not match"
"""Beginning of a warning of PEFT, which looks for patterns among modules alone, and uses those of stacks too."""
_INSIDE = ".base_layer"


class Stack(NamedTuple):
    """A parameter that is adapted."""

    name: str
    """Its name in the plain model."""
    weight: Tensor
    is_transposed: bool
    """Its matrices are (in, out)."""

    def factor_shapes(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return the shapes of A (r E, in) and B (out, r E) of this rank; None: PEFT has no factors for it.

        A plain matrix is a stack of one.
        """
        if self.weight.dim() not in (2, 3):
            return None
        experts, out, width = (
            self.weight.shape if self.weight.dim() == 3 else (1, *self.weight.shape)
        )
        if self.is_transposed and self.weight.dim() == 3:
            out, width = width, out
        return (rank * experts, width), (out, rank * experts)


def plain_name(name: str) -> str:
    """Return the name of a module in the plain model, by that of one of the wrappers around it."""
    while name.endswith(_INSIDE):
        name = name.removesuffix(_INSIDE)
    return name


def stack_of(name: str, targets: Collection[str], modules: Mapping[str, nn.Module]) -> Stack | None:
    """Return the parameter whose factors are ``NAME.lora_A`` and ``NAME.lora_B``; None: they are of a module.

    Args:
        name: that of a module, or of one of the wrappers around it.
        targets: ``target_parameters`` of the adapter.
        modules: those of the plain model.
    """
    owner = plain_name(name)
    if owner not in modules:
        return None
    module = modules[owner]
    named = dict(module.named_parameters(recurse=False))
    adapted = [own for own in named if is_target(f"{owner}.{own}", targets)]
    inside = name.count(_INSIDE, len(owner))
    if inside >= len(adapted):
        return None
    own = adapted[len(adapted) - 1 - inside]
    is_transposed = bool(getattr(module, "is_transposed", False))
    return Stack(f"{owner}.{own}", named[own], is_transposed)


def is_target(name: str, targets: Collection[str]) -> bool:
    """Return whether a parameter's name is among ``target_parameters``, as PEFT reads them."""
    return any(name == target or name.endswith(f".{target}") for target in targets)
