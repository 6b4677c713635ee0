"""Gradients by the deterministic kernels of a GPU, which give the same bits in each run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Variable of cuBLAS with the number and size of its buffers; torch's check asks for a value under which its sums have
one order."""


@contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Return a context in which torch takes deterministic kernels, in this process.

    Attention's backward pass adds with atomic operations by default, whose order no run repeats. torch decides by a
    switch of the process (``torch.use_deterministic_algorithms``), so the switch is set for as long as gradients are
    computed: sampling in the same process goes on with kernels that have no deterministic form, such as the sums of
    top-p.

    Raises:
        RuntimeError: an operation has no deterministic kernel; a note says what to change.
    """
    os.environ.setdefault(WORKSPACE, ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory before it is written, so torch need not fill it.
    memory.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" in str(error):
            error.add_note(NO_KERNEL)
        raise
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warns)
        memory.fill_uninitialized_memory = fills


NO_KERNEL = (
    "The backend computes gradients by deterministic kernels, and torch has none for this operation on this device. "
    "Set deterministic of the backend to false; the run then repeats up to rounding."
)
