"""Small arrays of the host on their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return the array of the host as a tensor on ``device``, without waiting for the device.

    A copy from ordinary memory to a GPU waits until the GPU has done all that it was asked for. The host could then
    never run ahead, and the GPU would be idle at the start of each micro-batch. A copy from pinned memory does not
    wait; torch keeps the pinned block until the copy is done. On the host the result shares memory with the array.
    """
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
