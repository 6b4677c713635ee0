"""Sums of what one worker holds of each weight or factor, from which the engine makes the digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlhf_weights import bits_digest, held_bits_digest, num_words, read_sums, torch_dtype

from .recorder import Placed


def held_weights(weights: Mapping[str, Placed]) -> list[dict[str, Any]]:
    """Return the fields of ``HeldWeight`` for each weight, read back from the tensors that vLLM computes with."""
    found = []
    for name, placed in weights.items():
        weight = _as_sent(placed.read(), placed)
        sums = (
            [bits_digest(weight)]
            if placed.is_whole()
            else [*held_bits_digest(weight, placed.held())]
        )
        found.append((name, weight.dtype, placed, sums))
    read = iter(read_sums([one for *_, sums in found for one in sums]))
    return [
        _held_weight(name, dtype, placed, *(next(read) for _ in sums))
        for name, dtype, placed, sums in found
    ]


def _as_sent(weight: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return a weight in the dtype in which it came, if the model keeps exactly these numbers in a wider one, as some
    models keep single weights in float32."""
    sent = torch_dtype(placed.slot.dtype)
    is_wider = weight.is_floating_point() and weight.dtype.itemsize > sent.itemsize
    kept = [part.kept for part in placed.parts]
    if is_wider and all(torch.equal(part.to(sent).to(part.dtype), part) for part in kept):
        return weight.to(sent)
    return weight


def _held_weight(
    name: str, dtype: torch.dtype, placed: Placed, total: int, words: int | None = None
) -> dict[str, Any]:
    """Return the fields of ``HeldWeight``; ``words`` is None if the worker holds the whole weight."""
    all_words = num_words(placed.num_elements * dtype.itemsize)
    return {
        "name": name,
        "dtype": str(dtype),
        "shape": list(placed.slot.shape),
        "region": placed.region,
        "elements": placed.num_copied,
        "all_elements": placed.num_elements,
        "total": total,
        "words": all_words if words is None else words,
        "all_words": all_words,
    }
