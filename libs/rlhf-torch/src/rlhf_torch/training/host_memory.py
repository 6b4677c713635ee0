"""Tensors out of their device's memory for a while, in host memory that stays pinned between two moves.

Storages move, not tensors: a tensor, its views and all that shares its storage stay the same Python objects, with no
memory behind them until they come back. So optimizers, flat buffers and tied weights need not be told. On a CPU the
same code moves host memory to host memory, which gains nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .pinned_memory import PinnedMemory

Moved = list[tuple[torch.UntypedStorage, Tensor]]
"""Storages, each with the host memory that has its bytes."""


class HostMemory:
    """The storages of one owner that are out, and the host memory that they have been in.

    Args:
        device: the device that tensors leave; a tensor that is elsewhere, such as a step count of AdamW, stays.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = PinnedMemory(device)
        self._out: Moved = []
        self._emptied: list[tuple[torch.UntypedStorage, int]] = []
        """Storages without memory whose values nobody needs, each with its size in bytes."""
        self._arriving: Moved = []
        """Storages that ``begin_return`` is filling, with their host memory."""
        self._arrived: torch.cuda.Event | None = None
        self._side: torch.cuda.Stream | None = None
        """Stream of the copies that run beside computation."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are out."""
        return sum(len(host) for _, host in self._out)

    def prepare(self, tensors: Iterable[Tensor], *, copies: int = 1) -> None:
        """Begin to make the host memory that ``take`` of these tensors will need, in the background.

        Args:
            copies: number of sets of that size, for state of the same shapes that does not exist yet.
        """
        sizes = [storage.nbytes() for storage in self._storages(tensors)]
        self._host.prepare(sizes * copies)

    @torch.no_grad()
    def take(self, tensors: Iterable[Tensor], *, emptied: Iterable[Tensor] = ()) -> None:
        """Move the storages of ``tensors`` out; one that is out already stays out.

        Memory that torch did not allocate itself, such as a mapped file of weights on a CPU, stays.

        Args:
            emptied: tensors whose values nobody reads again, such as gradients that were applied. They are not copied,
                and are zero when they come back.
        """
        self.finish_return()
        taken: Moved = []
        for storage in self._storages(tensors):
            host = self._host.lend(storage.nbytes())
            host.copy_(_bytes_of(storage), non_blocking=True)
            taken.append((storage, host))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # memory must not be freed before it is copied
        for storage, _ in taken:
            storage.resize_(0)
        self._out += taken
        for storage in self._storages(emptied):
            self._emptied.append((storage, storage.nbytes()))
            storage.resize_(0)
        release_cached(self._device)

    def give_back(self) -> None:
        """Move everything back that is out; the bytes are the same."""
        self.begin_return()
        self.finish_return()

    @torch.no_grad()
    def begin_return(self) -> None:
        """Begin to move everything back that is out, beside what the device computes. Until ``finish_return`` no value
        of it may be read or written."""
        self.finish_return()
        for storage, size in self._emptied:
            storage.resize_(size)
            _bytes_of(storage).zero_()
        for storage, host in self._out:
            storage.resize_(len(host))
        if self._device.type == "cuda" and self._out:
            if self._side is None:
                self._side = torch.cuda.Stream(self._device)
            # The memory may have had another owner, whose work is still queued.
            self._side.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._side):
                _copy_back(self._out)
                self._arrived = self._side.record_event()
        else:
            _copy_back(self._out)
        self._arriving, self._out, self._emptied = self._out, [], []

    def finish_return(self) -> None:
        """Have everything that the device computes from now on find what ``begin_return`` has moved."""
        if self._arrived is not None:
            # The host waits too: it may lend the host memory to the next move.
            self._arrived.synchronize()
            self._arrived = None
        self._host.take_back(host for _, host in self._arriving)
        self._arriving = []

    def close(self) -> None:
        """Free the host memory. What is out is lost."""
        self.finish_return()
        self._out, self._emptied = [], []
        self._host.close()

    def _storages(self, tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
        """Return the storages with memory on the device, each once."""
        found = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            is_here = storage.nbytes() and storage.device.type == self._device.type
            if is_here and storage.resizable():
                found[storage._cdata] = storage
        return list(found.values())


def release_cached(device: torch.device) -> None:
    """Give back what torch keeps of freed memory: an engine in another process needs it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def expected_moments(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of tensors of state, each as large as its weight, that the first update of ``optimizer`` makes;
    0 for an optimizer that has made its state, or of which that is not known."""
    is_adam = isinstance(optimizer, torch.optim.Adam)  # AdamW is one too
    return 2 if is_adam and not optimizer.state else 0


def _copy_back(moved: Moved) -> None:
    for storage, host in moved:
        _bytes_of(storage).copy_(host, non_blocking=True)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
