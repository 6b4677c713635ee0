"""Statistics over the positions where a mask is True.

Padding is left out with ``where``, never by multiplication: 0 * nan is nan, and padding may hold nan.
Sums run in float64, so equal values that are not exact in binary, such as 0.1, have deviations of exactly 0.
"""

from __future__ import annotations

from ..lazy import Bool, Float, torch


def masked_sum(
    values: Float[torch.Tensor, "*n"], mask: Bool[torch.Tensor, "*n"]
) -> Float[torch.Tensor, ""]:
    """Return the sum of ``values`` where ``mask``, in float64."""
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
