"""The critic's loss."""

from __future__ import annotations

from ..lazy import Bool, Float, torch


def value_loss(
    values: Float[torch.Tensor, "*n"],
    old_values: Float[torch.Tensor, "*n"],
    returns: Float[torch.Tensor, "*n"],
    clip: float | None,
    *,
    action_mask: Bool[torch.Tensor, "*n"] | None = None,
) -> Float[torch.Tensor, "*n"]:
    """Return half the squared error to the returns, per token, clipped so that values do not leave the old ones fast.

    ``0.5 * max((V - G)^2, (V_clip - G)^2)`` with ``V_clip = V_old + clip(V - V_old, -clip, clip)``. Without a clip,
    and with one that is never reached, it is ``0.5 * (V - G)^2``.

    Args:
        values: V, values of the critic being trained; the only argument with a gradient.
        old_values: V_old, values of the critic before the batch's updates.
        returns: G, the targets.
        clip: clip range, in units of the reward, positive; None: do not clip.
        action_mask: True at action tokens; elsewhere the result is 0 without a gradient, also for nan.

    Source: the clipped value loss of OpenAI's PPO implementation (baselines, ``ppo2``), described in Engstrom et al.
    2020, arXiv:2005.12729; it is not in the PPO paper.
    """
    if action_mask is not None:
        values, old_values, returns = (
            torch.where(action_mask, tensor, 0.0) for tensor in (values, old_values, returns)
        )
    error = (values - returns).square()
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - returns).square())
    return 0.5 * error
