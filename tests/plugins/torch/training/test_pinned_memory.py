"""Host memory for moves: made in the background, lent again, private to the process."""

import contextlib
import gc
from pathlib import Path

import pytest
import torch

from rlhf_torch.training import pinned_memory
from rlhf_torch.training.pinned_memory import PAGE, PinnedMemory, touched_pages


@pytest.fixture
def memory():
    found = PinnedMemory(torch.device("cpu"))
    yield found
    found.close()


def test_a_buffer_has_the_size_that_is_asked_for_and_is_lent_again(memory):
    first, second = memory.lend(100), memory.lend(100)
    assert [len(first), len(second)] == [100, 100]
    assert first.data_ptr() != second.data_ptr()

    memory.take_back([first])

    assert memory.lend(100).data_ptr() == first.data_ptr()


def test_buffers_that_are_made_in_the_background_are_the_ones_that_are_lent(memory):
    memory.prepare([64, 64, 4096])
    memory.prepare([64])

    lent = [memory.lend(size) for size in (64, 64, 64, 4096, 64)]

    assert [len(buffer) for buffer in lent] == [64, 64, 64, 4096, 64]
    assert len({buffer.data_ptr() for buffer in lent}) == 5
    for number, buffer in enumerate(lent):
        buffer.fill_(number)
    assert [int(buffer[-1]) for buffer in lent] == [0, 1, 2, 3, 4], "no two share memory"


def test_what_nobody_waits_for_is_given_up_at_the_end(memory):
    memory.prepare([1024] * 50)
    memory.close()

    assert len(memory.lend(10)) == 10, "and it may be used anew"


def test_pages_are_whole_private_and_ready_to_write():
    """A mapping that is private and has no name ends with its process, however that ends."""
    pages = touched_pages(PAGE + 1)

    assert len(pages) == 2 * PAGE
    assert not pages.any()
    pages.fill_(7)
    assert int(pages[-1]) == 7
    (line,) = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if _has(line, pages)
    ]
    flags, name = line.split()[1], line.split()[5:]
    assert flags == "rw-p"
    assert not [word for word in name if not word.startswith("[anon")]


def _has(line, tensor):
    begin, end = (int(word, 16) for word in line.split()[0].split("-"))
    return begin <= tensor.data_ptr() < end


class FakeCuda:
    """CUDA's calls for host memory. It keeps an error until a kernel is started, as CUDA does."""

    def __init__(self):
        self.pinned, self.full, self.pending = [], False, False

    def cudaHostRegister(self, address, size, flags):
        self.pending = self.full
        if not self.full:
            self.pinned.append(address)
        return 712 if self.full else 0

    def cudaHostUnregister(self, address):
        self.pinned.remove(address)

    def start_kernel(self, *_, **__):
        if self.pending:
            self.pending = False
            raise RuntimeError("part or all of the requested memory range is already mapped")


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(pinned_memory.torch, "zeros", fake.start_kernel)
    monkeypatch.setattr(pinned_memory, "touched_pages", lambda size: torch.empty(size).byte())
    return fake


def test_memory_that_nobody_holds_any_more_is_unpinned(cuda):
    memory = PinnedMemory(torch.device("cuda"))
    memory.lend(100)
    assert len(cuda.pinned) == 1

    del memory
    gc.collect()

    assert not cuda.pinned


def test_memory_that_cannot_be_pinned_leaves_no_error_to_the_next_kernel(cuda, caplog):
    memory, cuda.full = PinnedMemory(torch.device("cuda")), True

    assert len(memory.lend(100)) == 100

    cuda.start_kernel()
    assert "could not be pinned (CUDA error 712)" in caplog.text
    cuda.full = False
    memory.close()
