"""The number of pages of the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlhf_core import ConfigError
from rlhf_core.contracts import EngineSpec
from rlhf_torch.models.layers import decoder_layers
from rlhf_torch.models.modeling import CausalLM

from ..cache import round_up, storage_dtype
from .pages import PAGE, pages_of
from .state_pages import ALIGNMENT

SHARE = 0.3
"""Part of a GPU's memory that the cache takes at most where no option says otherwise: the trainer lives there too."""
GIB = 2**30


def cache_pages(lm: CausalLM, spec: EngineSpec, slots: int, kv_cache_gib: float | None) -> int:
    """Return the number of pages: enough for all sequences that may be there, if the memory suffices for them; with
    fewer, histories give way and then sequences wait.

    These are ``slots`` sequences; or, where conversations have several turns, as many as may be in flight, since those
    that wait for their next turn keep their pages, and the state behind them in a model that carries one.

    Args:
        slots: number of sequences that are decoded together, at most as many as may be in flight.
        kv_cache_gib: memory that keys and values may take; None: 0.3 of a GPU's, on a CPU as much as they need.

    Raises:
        ConfigError: the memory does not hold one sequence.
    """
    length, page = spec.max_length, page_bytes(lm)
    one = 1 + pages_of(length)  # and the page that belongs to nobody
    wanted = 1 + slots * pages_of(length)
    if spec.several_turns:
        kept = pages_of(length) + -(-state_bytes(lm) // page)
        wanted = 1 + spec.max_concurrency * kept
    limit = _limit(lm.device, kv_cache_gib)
    if limit is None:
        return wanted
    if limit < one * page:
        raise ConfigError(
            f"one sequence of {length} tokens needs {one * page / GIB:.2f} GiB of keys and values, and the engine "
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


def state_bytes(lm: CausalLM) -> int:
    """Return the bytes of the state of one sequence in all recurrent layers, as ``StatePages`` stores it: the last
    inputs of each convolution, and the matrix of each head of the delta rule in float32."""
    size = storage_dtype(lm.compute_dtype, lm.device).itemsize
    layers = decoder_layers(lm.model)
    total = 0
    # Any: the sizes of heads are attributes of Transformers' classes.
    module: Any
    for module in (part for number in lm.recurrent for part in layers[number].modules()):
        if isinstance(module, nn.Conv1d):
            total += round_up(module.in_channels * (module.kernel_size[0] - 1) * size, ALIGNMENT)
        elif hasattr(module, "head_v_dim"):
            matrix = module.head_k_dim * module.head_v_dim
            total += round_up(4 * module.num_v_heads * matrix, ALIGNMENT)
    return total


def _limit(device: torch.device, kv_cache_gib: float | None) -> float | None:
    if kv_cache_gib is not None:
        return kv_cache_gib * GIB
    if device.type != "cuda":
        return None
    return SHARE * torch.cuda.get_device_properties(device).total_memory
