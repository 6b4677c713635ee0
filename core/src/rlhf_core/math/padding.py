"""Conversion between flat columns, one entry per action token of all sequences, and right-padded (B, A) tensors.

Both directions are one gather or scatter, without a loop over sequences, and gradients flow through both.
"""

from __future__ import annotations

from typing import NamedTuple

from ..lazy import Bool, Int, Shaped, torch


class Padded(NamedTuple):
    """A right-padded column, and a mask that is True where it holds data."""

    values: Shaped[torch.Tensor, "b a"]
    mask: Bool[torch.Tensor, "b a"]


def pad_columns(flat: Shaped[torch.Tensor, " n"], lengths: Int[torch.Tensor, " b"]) -> Padded:
    """Return a flat column as rows: row b holds the next ``lengths[b]`` entries, then zeros.

    ``A`` is the longest length. A length of 0 gives a row of padding. The dtype may be any.

    Raises:
        ValueError: the lengths do not add up to the size of ``flat``.
    """
    total = int(lengths.sum())
    if total != len(flat):
        raise ValueError(f"the lengths add up to {total}, but the column has {len(flat)} entries")
    width = int(lengths.max()) if len(lengths) else 0
    mask = torch.arange(width, device=lengths.device) < lengths[:, None]  # (B, A)
    values = flat.new_zeros(mask.shape).masked_scatter(mask, flat)  # (B, A)
    return Padded(values, mask)


def unpad(
    padded: Shaped[torch.Tensor, "b a"], mask: Bool[torch.Tensor, "b a"]
) -> Shaped[torch.Tensor, " n"]:
    """Return the entries where ``mask``, row after row: the inverse of ``pad_columns``."""
    return padded[mask]
