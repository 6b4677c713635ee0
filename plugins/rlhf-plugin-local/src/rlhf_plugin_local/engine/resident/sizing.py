"""The number of pages of the cache."""

from __future__ import annotations

import torch

from rlhf_core import ConfigError
from rlhf_torch.models.modeling import CausalLM

from ..cache import storage_dtype
from .pages import PAGE, pages_of

SHARE = 0.3
"""Part of a GPU's memory that the cache takes at most where no option says otherwise: the trainer lives there too."""
GIB = 2**30


def cache_pages(lm: CausalLM, slots: int, max_length: int, kv_cache_gib: float | None) -> int:
    """Return the number of pages: enough for ``slots`` sequences of ``max_length`` tokens, if the memory suffices for
    them; with fewer, sequences wait for pages.

    Args:
        kv_cache_gib: memory that keys and values may take; None: 0.3 of a GPU's, on a CPU as much as they need.

    Raises:
        ConfigError: the memory does not hold one sequence.
    """
    one = 1 + pages_of(max_length)  # and the page that belongs to nobody
    wanted = 1 + slots * pages_of(max_length)
    limit = _limit(lm.device, kv_cache_gib)
    if limit is None:
        return wanted
    page = page_bytes(lm)
    if limit < one * page:
        raise ConfigError(
            f"one sequence of {max_length} tokens needs {one * page / GIB:.2f} GiB of keys and values, and the engine "
            f"may take {limit / GIB:.2f}. Set --engine.embedded.kv_cache_gib to at least "
            f"{one * page / GIB + 0.005:.2f}, or allow shorter sequences",
            code="engine/memory-too-small",
        )
    return min(wanted, int(limit // page))


def page_bytes(lm: CausalLM) -> int:
    """Return the bytes of one page in all layers that have keys and values."""
    size = storage_dtype(lm.compute_dtype, lm.device).itemsize
    layers = [layer for layer in range(lm.num_layers) if layer not in lm.recurrent]
    return 2 * sum(map(lm.key_width, layers)) * size * PAGE


def _limit(device: torch.device, kv_cache_gib: float | None) -> float | None:
    if kv_cache_gib is not None:
        return kv_cache_gib * GIB
    if device.type != "cuda":
        return None
    return SHARE * torch.cuda.get_device_properties(device).total_memory
