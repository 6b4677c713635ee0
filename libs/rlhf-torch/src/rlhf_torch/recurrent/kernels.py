"""The GPU kernel of the gated delta rule, where it is installed and computes rightly.

``flash-linear-attention`` knows where the sequences of a row begin. Some of its versions raise or compute wrong
gradients with some versions of Triton on some GPUs, so it is compared with plain torch first, on the GPU of the run,
forwards and backwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlhf_core import headline

log = logging.getLogger(__name__)

Function = Callable[..., Any]
LENGTHS = (70, 33)
"""Tokens of the sequences of the probe: more and fewer than a chunk of 64."""
ALLOWED = 0.05
"""Largest difference of the probe, relative to the largest number; bfloat16 rounds at 0.004, and a state that goes
from one sequence to the next differs by the order of 1."""


def packed_kernel(
    plain: Function, device: torch.device, key_size: int, value_size: int
) -> Function | None:
    """Return the kernel that takes the beginnings of sequences as ``cu_seqlens``; None: plain torch is to compute.

    That there is none on a GPU is logged once, with the reason.

    Args:
        plain: the same rule by plain torch, for sequences of one length.
        key_size: K, of a head; a package may have several kernels, and choose by it.
        value_size: V, of a head.
    """
    return None if device.type != "cuda" else _kernel(plain, device, key_size, value_size)


@cache
def _kernel(
    plain: Function, device: torch.device, key_size: int, value_size: int
) -> Function | None:
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except Exception as error:  # a package for other versions of torch or Triton may raise anything
        reason = f"flash-linear-attention cannot be imported ({headline(error)})"
    else:
        kernel: Function = chunk_gated_delta_rule
        problem = problem_of(kernel, plain, device, key_size, value_size)
        if problem is None:
            return kernel
        reason = f"flash-linear-attention {problem}"
    log.warning(
        "gated linear attention: %s, so plain torch computes the sequences, padded to the longest, which takes three "
        "to four times as long. The kernel's packages: pip install flash-linear-attention, and on Hopper tilelang",
        reason,
    )
    return None


def problem_of(
    kernel: Function, plain: Function, device: torch.device, key_size: int, value_size: int
) -> str | None:
    """Return what is wrong with a kernel, by its outputs and gradients for a row of two sequences; None: nothing."""
    draw = torch.Generator().manual_seed(0)
    row = (1, sum(LENGTHS), 2)
    shapes = [(*row, key_size)] * 2 + [(*row, value_size)] + [row] * 2
    parts = [torch.randn(shape, generator=draw) for shape in shapes]
    parts[3], parts[4] = -parts[3].abs(), parts[4].sigmoid()
    parts = [part.to(device, torch.bfloat16) for part in parts]
    parts[3] = parts[3].float()
    starts = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], device=device)
    weights = torch.randn(shapes[2], generator=draw).to(device)

    def by_kernel(*row: Tensor) -> Tensor:
        outputs: Tensor = _call(kernel, row, cu_seqlens=starts)
        return outputs

    def one_by_one(*row: Tensor) -> Tensor:
        alone = zip(*(part.split(LENGTHS, dim=1) for part in row), strict=True)
        return torch.cat([_call(plain, sequence) for sequence in alone], dim=1)

    try:
        found, wanted = (_numbers(each, parts, weights) for each in (by_kernel, one_by_one))
    except Exception as error:  # whatever a kernel raises is a reason not to train with it
        return f"raises: {headline(error)}"
    worst = max(
        float((own - other).abs().max() / other.abs().max())
        for own, other in zip(found, wanted, strict=True)
    )
    return None if worst <= ALLOWED else f"differs from plain torch by {worst:.2g} on this GPU"


def _call(rule: Function, row: Any, **options: Any) -> Any:
    query, key, value, g, beta = row
    return rule(query, key, value, g=g, beta=beta, use_qk_l2norm_in_kernel=True, **options)[0]


def _numbers(rule: Callable[..., Tensor], parts: list[Tensor], weights: Tensor) -> list[Tensor]:
    """Return outputs and gradients in float32."""
    with torch.enable_grad():
        leaves = [part.detach().clone().requires_grad_() for part in parts]
        outputs = rule(*leaves)
        gradients = torch.autograd.grad((outputs.float() * weights).sum(), leaves)
    return [each.detach().float() for each in (outputs, *gradients)]
