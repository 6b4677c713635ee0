"""What a pair is: a function of a peer and ours, called on the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .batches import Batch

EXACT = 1e-6
"""In float64."""
FLOAT32 = 1e-5
"""Where the peer computes in float32: its rounding, 6e-8, times a few dozen terms of size 1 to 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """The results of the two on one input; any shape, masked positions only."""

    ours: Tensor
    theirs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One function of a peer, and ours that must return the same."""

    peer: str
    function: str
    """Of the peer, below its package."""
    ours: str
    """Below our packages."""
    case: str
    """Which of the function's modes; empty if there is one."""
    compare: Callable[[Batch], Both]
    gradient: str | None
    """The field of the batch to which both gradients must be the same; None: the function has none."""
    equal_groups: bool
    tolerance: float
    why_tolerance: str

    @property
    def name(self) -> str:
        return f"{self.peer}.{self.function}" + (f"[{self.case}]" if self.case else "")


PAIRS: list[Pair] = []


def pair(
    peer: str,
    function: str,
    ours: str,
    *,
    case: str = "",
    gradient: str | None = None,
    equal_groups: bool = False,
    float32: str = "",
) -> Callable[[Callable[[Batch], Both]], Callable[[Batch], Both]]:
    """Register a comparison.

    Args:
        float32: what the peer computes in float32, which then bounds the agreement.
    """

    def register(compare: Callable[[Batch], Both]) -> Callable[[Batch], Both]:
        PAIRS.append(
            Pair(
                peer=peer,
                function=function,
                ours=ours,
                case=case,
                compare=compare,
                gradient=gradient,
                equal_groups=equal_groups,
                tolerance=FLOAT32 if float32 else EXACT,
                why_tolerance=float32,
            )
        )
        return compare

    return register


def gradients(both: Both, leaf: Tensor) -> Both:
    """Return both gradients to ``leaf``, of the results weighted with fixed random numbers."""
    draw = torch.Generator().manual_seed(0)
    weights = torch.rand(both.ours.shape, generator=draw, dtype=both.ours.dtype) + 0.5
    (ours,) = torch.autograd.grad((both.ours * weights).sum(), leaf, retain_graph=True)
    (theirs,) = torch.autograd.grad((both.theirs * weights).sum(), leaf)
    return Both(ours=ours, theirs=theirs)
