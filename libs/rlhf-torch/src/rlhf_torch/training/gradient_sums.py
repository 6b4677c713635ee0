"""Sums of gradients over micro-batches: half precision added to float32."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from ..building.triton_modules import kernel_module


def add_gradient(total: Tensor, part: Tensor) -> None:
    """Add the gradient of one micro-batch to the sum of those before it.

    Args:
        total: float32, contiguous.
        part: of the same shape, in half precision.
    """
    kernels = _kernels() if total.is_cuda else None
    if kernels is None:
        # add_ reads bfloat16 directly: a separate cast takes half as long again.
        total.add_(part)
    else:
        kernels.add_(total, part.contiguous())


@cache
def _kernels() -> ModuleType | None:
    return kernel_module(
        f"{__package__}.sum_kernel", _try, loss="gradients are added by a slower kernel"
    )


def _try(kernels: ModuleType) -> None:
    total = torch.zeros(16, device="cuda")
    kernels.add_(total, total.bfloat16())
