"""Memory that two processes see: one makes it and describes it, the other opens it from the description.

Descriptions hold numbers, strings and bytes only, so no pickle is needed to send them. On a CPU the memory is an
anonymous file: it has no name, so nothing is left behind however the processes end.
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
"""``kind`` and what the kind needs. Any: it is sent as a plain dictionary."""


class HostBuffer:
    """Bytes in an anonymous file of this process, which the receiver opens through ``/proc``."""

    def __init__(self, nbytes: int) -> None:
        # Any process may have a file of this number; the name says that it is this one.
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
        """Return what one more receiver opens it by."""
        return self.description

    def ready(self) -> None:
        """Return once what was written can be read."""

    def close(self) -> None:
        # The map is freed with the last tensor that looks into it; the file with the last map.
        os.close(self._file)
        del self.bytes, self._map


class CudaBuffer:
    """Bytes on a GPU, which another process on the same GPU maps (CUDA IPC)."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.bytes: Tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.description: Description = self.describe()

    def describe(self) -> Description:
        """Return what one more receiver opens it by: torch counts each that has the memory open."""
        storage: Any = self.bytes.untyped_storage()  # torch does not type what its own IPC uses
        return {
            "kind": "cuda",
            "nbytes": len(self.bytes),
            "offset": self.bytes.storage_offset(),
            "shared": list(storage._share_cuda_()),
        }

    def ready(self) -> None:
        """Return once what was written can be read."""
        torch.cuda.current_stream(self.bytes.device).synchronize()

    def close(self) -> None:
        del self.bytes


def buffer_for(nbytes: int, device: torch.device) -> HostBuffer | CudaBuffer:
    """Return memory on ``device`` that another process of this machine can open."""
    return CudaBuffer(nbytes, device) if device.type == "cuda" else HostBuffer(nbytes)


def open_buffer(description: Description, device: torch.device) -> Tensor:
    """Return the bytes that another process described, shared and not copied.

    Args:
        device: of the receiver; on a GPU it has to be the sender's, by whatever number this process knows it.

    Raises:
        LinkBroken: this process does not see it.
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
            f"another container or of another user ({error}). Weights can go by a broadcast or the object store instead"
        ) from error
    try:
        return torch.frombuffer(mmap.mmap(file, description["nbytes"]), dtype=torch.uint8)
    finally:
        os.close(file)
