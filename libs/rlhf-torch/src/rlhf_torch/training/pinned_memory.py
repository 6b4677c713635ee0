"""Host memory that the accelerator copies to and from at the speed of its link, and that is made in the background.

Memory is pinned once: to make it takes several times as long as to copy into it. Two things make it faster. Pages of
2 MiB, of which there are 512 times fewer to pin; and several threads that touch them first, since the kernel clears
each page at its first touch. The memory is private to the process, so whatever ends the process frees it.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

log = logging.getLogger(__name__)

PAGE = 2 * 2**20
"""Bytes of a large page."""
SLAB = 256 * 2**20
"""Least bytes that are pinned at once: small buffers are cut from a common piece of memory."""
ALIGNMENT = 512
"""Buffers begin at multiples of this number of bytes, as torch's own allocations do."""
TOUCHING_THREADS = 4
"""Threads that touch new pages; each rank of a machine has its own."""


class PinnedMemory:
    """Buffers of host memory by size, kept for whoever asks for the same size again.

    Args:
        device: the device that copies; on any but a GPU the memory is ordinary.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: dict[int, list[Tensor]] = defaultdict(list)
        self._coming: dict[int, deque[Future[Tensor]]] = defaultdict(deque)
        """Buffers that ``prepare`` is making."""
        self._slabs: list[Tensor] = []
        """All memory that is pinned."""
        # Memory that is freed while it counts as pinned cannot be pinned again where it is reused.
        self._unpin = weakref.finalize(self, _unpin, self._slabs)
        self._unpin.atexit = False  # the end of the process frees it
        self._rest: Tensor | None = None
        """The part of the newest slab that no buffer has yet."""
        self._worker: ThreadPoolExecutor | None = None

    def prepare(self, sizes: Iterable[int]) -> None:
        """Begin to make buffers of these sizes, in bytes, in the background."""
        for size in sizes:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="pinning")
            self._coming[size].append(self._worker.submit(self._make, size))

    def lend(self, size: int) -> Tensor:
        """Return a buffer (size,) of bytes, the one in the making if there is one."""
        if free := self._free[size]:
            return free.pop()
        if coming := self._coming[size]:
            return coming.popleft().result()
        if self._worker is not None:
            return self._worker.submit(self._make, size).result()  # one thread cuts the slabs
        return self._make(size)

    def take_back(self, buffers: Iterable[Tensor]) -> None:
        """Keep buffers for the next time. No copy from or to them is under way."""
        for buffer in buffers:
            self._free[len(buffer)].append(buffer)

    def close(self) -> None:
        """Free all memory. No copy is under way, and nobody uses a buffer that was lent."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
        _unpin(self._slabs)
        self._free.clear()
        self._coming.clear()
        self._rest, self._worker = None, None

    def _make(self, size: int) -> Tensor:
        room = -(-size // ALIGNMENT) * ALIGNMENT
        if self._rest is None or len(self._rest) < room:
            self._rest = self._slab(max(room, SLAB) if self._device.type == "cuda" else room)
        buffer, self._rest = self._rest[:size], self._rest[room:]
        return buffer

    def _slab(self, size: int) -> Tensor:
        if self._device.type != "cuda":
            return torch.empty(size, dtype=torch.uint8)
        slab = touched_pages(size)
        # torch's own pinned memory is rounded up to the next power of two, which may double it.
        with torch.cuda.device(self._device):
            status = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), len(slab), 0)
        if not int(status):
            self._slabs.append(slab)
            return slab
        _forget_error(self._device)
        log.warning(
            "%d bytes of host memory could not be pinned (CUDA error %d): moves of roles are slower",
            size,
            int(status),
        )
        return slab


def _unpin(slabs: list[Tensor]) -> None:
    """Let the slabs be ordinary memory again, and forget them."""
    while slabs:
        torch.cuda.cudart().cudaHostUnregister(slabs.pop().data_ptr())


def _forget_error(device: torch.device) -> None:
    """Take an error that has been dealt with out of CUDA, which keeps it for whoever asks next in this thread.

    torch asks after each kernel that it starts, and would blame that one.
    """
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        log.debug("the failed call's error, which torch takes for its own: %s", error)


def touched_pages(size: int) -> Tensor:
    """Return (size,) bytes, rounded up to whole pages, each of which has been touched."""
    size = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            log.debug("this kernel has no large pages; pinning takes longer")
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    threads = min(TOUCHING_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as touching:
        list(touching.map(Tensor.zero_, whole.chunk(4 * threads)))
    return whole
