"""Addition of a tensor in half precision to one in float32 as a kernel, at the speed of the memory.

torch's own addition of two dtypes reads number by number, at a quarter of that speed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
"""Numbers that a program adds."""


@triton.jit
def _add_kernel(total_ptr, part_ptr, size, block: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < size
    part = tl.load(part_ptr + places, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(total_ptr + places, mask=inside, other=0.0)
    tl.store(total_ptr + places, total + part, mask=inside)


def add_(total: Tensor, part: Tensor) -> None:
    """Add ``part`` to ``total``, both contiguous and of one shape, to the bits of ``total.add_(part)``."""
    size = total.numel()
    if size:
        _add_kernel[(triton.cdiv(size, BLOCK),)](total, part, size, block=BLOCK, num_warps=4)
