"""One digest for a set of weights, equal wherever the same names hold the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def checksum_of(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256, in hexadecimal, of (name, dtype, shape, bytes) of each tensor in the order of their names.

    The order of insertion, the device and the strides do not matter; a single flipped bit does. Applied to
    ``CausalLM.model.state_dict()`` by both the training backend and the engine. Tied weights count under each of
    their names.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach()
        shape = ",".join(map(str, tensor.shape))
        # The terminator keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(f"{name}|{tensor.dtype}|{shape}\0".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy())
    return digest.hexdigest()
