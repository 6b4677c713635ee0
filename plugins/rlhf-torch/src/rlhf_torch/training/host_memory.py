"""Tensors out of their device's memory for a while, in host memory that stays pinned between two moves.

Storages move, not tensors: a tensor, its views and all that shares its storage stay the same Python objects, with no
memory behind them until they come back. So optimizers, flat buffers and tied weights need not be told. On a CPU the
same code moves host memory to host memory, which gains nothing and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from torch import Tensor

log = logging.getLogger(__name__)


class HostMemory:
    """The storages of one owner that are out, and the host memory that they have been in.

    Host memory is kept for the next move, because pinning takes longer than copying.

    Args:
        device: the device that tensors leave; a tensor that is elsewhere, such as a step count of AdamW, stays.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out: list[tuple[torch.UntypedStorage, Tensor]] = []
        """Storages without memory, each with the host memory that has its bytes."""
        self._free: dict[int, list[Tensor]] = {}
        """Host memory of earlier moves, by its size in bytes."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are out."""
        return sum(len(host) for _, host in self._out)

    @torch.no_grad()
    def take(self, tensors: Iterable[Tensor]) -> None:
        """Move the storages of ``tensors`` out; one that is out already stays out.

        Memory that torch did not allocate itself, such as a mapped file of weights on a CPU, stays.
        """
        found = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            is_here = storage.nbytes() and storage.device.type == self._device.type
            if is_here and storage.resizable():
                found[storage._cdata] = storage
        taken = []
        for storage in found.values():
            host = self._host(storage.nbytes())
            host.copy_(_bytes_of(storage), non_blocking=True)
            taken.append((storage, host))
        self._finish()
        for storage, _ in taken:
            storage.resize_(0)
        self._out += taken
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # an engine in another process needs what torch would keep

    @torch.no_grad()
    def give_back(self) -> None:
        """Move everything back that is out; the bytes are the same."""
        for storage, host in self._out:
            storage.resize_(len(host))
            _bytes_of(storage).copy_(host, non_blocking=True)
        self._finish()
        for _, host in self._out:
            self._free.setdefault(len(host), []).append(host)
        self._out.clear()

    def close(self) -> None:
        """Free the host memory. What is out is lost."""
        kept = [host for _, host in self._out]
        kept += [host for hosts in self._free.values() for host in hosts]
        self._out, self._free = [], {}
        if self._device.type == "cuda":
            for host in kept:
                torch.cuda.cudart().cudaHostUnregister(host.data_ptr())

    def _host(self, size: int) -> Tensor:
        if free := self._free.get(size):
            return free.pop()
        host = torch.empty(size, dtype=torch.uint8)
        if self._device.type == "cuda":
            # torch's own pinned memory is rounded up to the next power of two, which may double it.
            status = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), size, 0)
            if int(status):
                log.warning(
                    "%d bytes of host memory could not be pinned (CUDA error %d): moves of roles are slower",
                    size,
                    int(status),
                )
        return host

    def _finish(self) -> None:
        """Wait for the copies: memory must neither be freed nor be read before."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
