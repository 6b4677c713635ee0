"""One digest for a set of weights, the same as training backends compute."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def digest_of(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256, in hexadecimal, of (name, dtype, shape, bytes) of each tensor.

    Args:
        weights: in the order of their names. One tensor is looked at at a time, so a generator keeps memory small.
    """
    digest = hashlib.sha256()
    for name, tensor in weights:
        shape = ",".join(map(str, tensor.shape))
        digest.update(f"{name}|{tensor.dtype}|{shape}\0".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy())
    return digest.hexdigest()
