"""Aggregation of a loss per token to one number that does not depend on how a step is cut into micro-batches.

The normalizers are arguments: they are totals over the whole optimizer step, so the results of its micro-batches, on
all ranks, add up to the result of the undivided step. Normalizing within each micro-batch instead would weight a
token by how full its micro-batch happens to be.
"""

from __future__ import annotations

from typing import get_args

from ..contracts.backend import Aggregation
from ..lazy import Bool, Float, torch


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
    if divisor <= 0:
        raise ValueError(
            f"{mode} divides by totals of the step, which must be positive; got num_actions={num_actions}, "
            f"num_sequences={num_sequences}, max_actions={max_actions}"
        )
    kept = torch.where(mask, loss, 0.0)  # (B, A)
    kept = kept.to(torch.promote_types(kept.dtype, torch.float32))
    if mode == "seq-mean-token-mean":
        kept = kept.sum(dim=1) / mask.sum(dim=1).clamp(min=1)  # (B,)
        if row_weights is not None:
            kept = kept * row_weights
    return kept.sum() / divisor
