"""Memory that two processes share: the sender makes and describes a buffer, a receiver opens it by the description.

Descriptions hold numbers, strings and bytes only, so no pickle is needed to send them. On a CPU the memory is an
anonymous file, which is gone with its last user, whichever way the processes end.
"""

from __future__ import annotations

import mmap
import os
import secrets
from typing import Any

import torch
from torch import Tensor

from .group import LinkBroken

Description = dict[str, Any]
"""Kind of the buffer (``kind``) and the values by which a receiver opens it, as a plain dictionary."""


class HostBuffer:
    """Buffer in an anonymous file of this process, which the receiver opens through ``/proc``."""

    def __init__(self, nbytes: int) -> None:
        # Any process may have a file of the same number. The name tells the receiver that the file is this one.
        name = f"rlhf-weights-{secrets.token_hex(8)}"
        self._file = os.memfd_create(name)
        os.ftruncate(self._file, nbytes)
        self._map = mmap.mmap(self._file, nbytes)
        self.bytes: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self.description: Description = {
            "kind": "host",
            "path": f"/proc/{os.getpid()}/fd/{self._file}",
            "name": name,
            "nbytes": nbytes,
        }

    def describe(self) -> Description:
        """Return the description by which one more receiver opens the buffer."""
        return self.description

    def ready(self) -> None:
        """Do nothing: writes to host memory can be read at once."""

    def close(self) -> None:
        """Free the buffer once no tensor uses it: the map goes with its last tensor, the file with its last map."""
        os.close(self._file)
        del self.bytes, self._map


class CudaBuffer:
    """Buffer on a GPU, which another process on the same GPU maps (CUDA IPC)."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.bytes: Tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.description: Description = self.describe()

    def describe(self) -> Description:
        """Return the description by which one more receiver opens the buffer; torch counts the receivers."""
        storage: Any = self.bytes.untyped_storage()  # The methods of torch's own IPC have no types.
        return {
            "kind": "cuda",
            "nbytes": len(self.bytes),
            "offset": self.bytes.storage_offset(),
            "shared": list(storage._share_cuda_()),
        }

    def ready(self) -> None:
        """Return once all writes to the buffer can be read."""
        torch.cuda.current_stream(self.bytes.device).synchronize()

    def close(self) -> None:
        """Free the buffer once no receiver has it open."""
        del self.bytes


def buffer_for(nbytes: int, device: torch.device) -> HostBuffer | CudaBuffer:
    """Return a buffer on ``device`` that another process of this machine can open."""
    return CudaBuffer(nbytes, device) if device.type == "cuda" else HostBuffer(nbytes)


def open_buffer(description: Description, device: torch.device) -> Tensor:
    """Return the bytes (nbytes,) of a buffer that another process described, shared and not copied.

    Args:
        device: device of the receiver; a GPU has to be the sender's GPU, which may have another number here.

    Raises:
        LinkBroken: this process cannot open the sender's file.
    """
    if description["kind"] == "host":
        return _open_file(description)
    _, *rest = description["shared"]
    storage = torch.UntypedStorage._new_shared_cuda(device.index or 0, *rest)
    whole = torch.empty(0, dtype=torch.uint8, device=device)
    return whole.set_(storage, description["offset"], (description["nbytes"],), (1,))


def _open_file(description: Description) -> Tensor:
    path, name = description["path"], description["name"]
    try:
        found = os.readlink(path)
        if name not in found:
            raise FileNotFoundError(f"it is {found} here")
        file = os.open(path, os.O_RDWR)
    except OSError as error:
        raise LinkBroken(
            f"the sender's memory {name} is not at {path} of this process, which seems to be on another machine, in "
            f"another container or of another user ({error}). Weights can go by a broadcast or the object "
            "store instead",
            code="weights/other-machine",
        ) from error
    try:
        return torch.frombuffer(mmap.mmap(file, description["nbytes"]), dtype=torch.uint8)
    finally:
        os.close(file)
