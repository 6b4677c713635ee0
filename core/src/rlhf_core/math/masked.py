"""Rows of different lengths as right-padded tensors with a mask, and sums, means and deviations over the positions
where it is True, and the aggregation of token losses to one number.

Flat columns have one entry per action token of all sequences. From them to (B, A) tensors and back is one gather or
scatter, without a loop over sequences, and gradients flow through both.

Padding is left out with ``where``, never by multiplication: 0 * nan is nan, and padding may hold nan.
Sums of statistics run in float64, so equal values that are not exact in binary, such as 0.1, have deviations of
exactly 0.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

from ..contracts.backend import Aggregation
from ..lazy import Bool, Float, Int, Shaped, torch


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


def masked_sum(
    values: Float[torch.Tensor, "*n"], mask: Bool[torch.Tensor, "*n"]
) -> Float[torch.Tensor, ""]:
    """Return the sum of ``values`` where ``mask``, in float64; values elsewhere may be NaN."""
    return torch.where(mask, values, 0.0).sum(dtype=torch.float64)


def masked_mean(
    values: Float[torch.Tensor, "*n"], mask: Bool[torch.Tensor, "*n"]
) -> Float[torch.Tensor, ""]:
    """Return the mean of ``values`` where ``mask``, in float64; 0 if ``mask`` is False everywhere."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def masked_var(
    values: Float[torch.Tensor, "*n"], mask: Bool[torch.Tensor, "*n"]
) -> Float[torch.Tensor, ""]:
    """Return the population variance ``mean((x - mean(x))^2)`` where ``mask``, in float64.

    Two passes, because ``mean(x^2) - mean(x)^2`` cancels when the mean is large.
    """
    return masked_mean(_deviation(values, mask).square(), mask)


def whiten(
    values: Float[torch.Tensor, "*n"],
    mask: Bool[torch.Tensor, "*n"],
    *,
    divide_by_std: bool = True,
    min_var: float = 1e-8,
) -> Float[torch.Tensor, "*n"]:
    """Return ``(x - mean) / sqrt(max(var, min_var))`` where ``mask``, and 0 elsewhere.

    Mean and population variance are over all positions where ``mask``, so long rows weigh more than short ones. Equal
    values give 0. The result has the dtype of ``values``.

    Args:
        divide_by_std: False: only the mean is removed.
        min_var: lower bound of the variance, in squared units of ``values``.
    """
    deviation = _deviation(values, mask)
    if divide_by_std:
        deviation = deviation / masked_var(values, mask).clamp(min=min_var).sqrt()
    return torch.where(mask, deviation, 0.0).to(values.dtype)


def _deviation(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # Padding is replaced before the arithmetic: a nan there would pass through the backward of the square as 0 * nan.
    return torch.where(mask, values, 0.0).to(torch.float64) - masked_mean(values, mask)


def aggregate(
    loss: Float[torch.Tensor, "b a"],
    mask: Bool[torch.Tensor, "b a"],
    mode: Aggregation,
    *,
    num_actions: int,
    num_sequences: int,
    max_actions: int,
    row_weights: Float[torch.Tensor, " b"] | None = None,
) -> Float[torch.Tensor, ""]:
    """Return this micro-batch's share of the step's loss.

    The normalizers are totals over the whole optimizer step, so the results of its micro-batches, on all ranks, add up
    to the result of the undivided step. Normalizing within each micro-batch instead would weight a token by how full
    its micro-batch happens to be.

    - ``token-mean``: ``sum(loss) / num_actions``. Every token weighs the same (DAPO, arXiv:2503.14476).
    - ``seq-mean-token-mean``: ``sum over rows of weight * mean(loss of the row) / num_sequences``. Every sequence
      weighs the same, so tokens of long ones count less (GRPO, arXiv:2402.03300). Rows without actions add 0.
    - ``seq-mean-token-sum-norm``: ``sum(loss) / (num_sequences * max_actions)``. Every token weighs the same again, and
      the divisor is a constant in place of the lengths (Dr. GRPO, arXiv:2503.20783).

    With all rows of length ``max_actions`` the three are equal. Half-precision losses are summed in float32.

    A sequence is an episode. Where an episode has several rows, ``num_sequences`` counts it once, and the weight of a
    row is its share of the episode's actions: then the episode's part is the mean over all its actions.

    Args:
        loss: loss of each action token; at padding anything, also nan.
        mask: True at action tokens.
        mode: one of the three.
        num_actions: action tokens of the whole optimizer step.
        num_sequences: sequences of the whole optimizer step, an episode of several rows counted once.
        max_actions: the longest response that the run allows.
        row_weights: share of each row in the actions of its episode; None: each row is an episode, of weight 1.

    Raises:
        ValueError: the mode is unknown, or a normalizer that it uses is not positive.
    """
    match mode:
        case "token-mean":
            divisor = num_actions
        case "seq-mean-token-mean":
            divisor = num_sequences
        case "seq-mean-token-sum-norm":
            divisor = num_sequences * max_actions
        case _:
            raise ValueError(
                f"aggregation {mode!r}: expected one of {', '.join(get_args(Aggregation))}"
            )
    # Divided by 0 the loss would be infinite or nan, and the weights after it.
    if divisor <= 0:
        raise ValueError(
            f"{mode} divides by totals of the step, which must be positive; got num_actions={num_actions}, "
            f"num_sequences={num_sequences}, max_actions={max_actions}"
        )
    # Sums of many tokens lose digits in half precision.
    kept = torch.where(mask, loss, 0.0)  # (B, A)
    kept = kept.to(torch.promote_types(kept.dtype, torch.float32))
    if mode == "seq-mean-token-mean":
        kept = kept.sum(dim=1) / mask.sum(dim=1).clamp(min=1)  # (B,)
        if row_weights is not None:
            kept = kept * row_weights
    return kept.sum() / divisor
