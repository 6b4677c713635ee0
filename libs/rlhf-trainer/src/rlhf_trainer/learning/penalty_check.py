"""A check that ends a run whose estimator leaves the KL penalty out.

With ``algo.kl.mode = reward`` the penalty reaches the policy through the estimator alone. With an estimator that reads
``RewardBatch.rewards`` alone a run would train without any penalty, and no metric would say why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlhf_core.contracts.advantage import AdvantageEstimator, Advantages, RewardBatch
from rlhf_core.errors import CapabilityError
from rlhf_core.lazy import torch

_LEAST_CHANGE = 1e-3
"""Smallest change that counts, as a share of the largest advantage: far above float32's rounding, far below the change
by a penalty as large as a reward."""


class PenaltyChecked:
    """An estimator, of which ``make`` returns new ones, that is checked with the first batch that has any advantage."""

    def __init__(self, make: Callable[[], AdvantageEstimator], label: str) -> None:
        self._make = make
        self._label = label
        self._estimator = make()
        self._is_checked = False

    def __call__(self, batch: RewardBatch) -> Advantages:
        """Raises:
        CapabilityError: the advantages do not depend on the KL penalty.
        """
        if not self._is_checked and batch.kl_penalty is not None:
            self._is_checked = has_penalty_counted(self._make, batch, self._label)
        return self._estimator(batch)


def has_penalty_counted(
    make: Callable[[], AdvantageEstimator], batch: RewardBatch, label: str
) -> bool:
    """Return True when the advantages of ``batch`` under a large penalty differ from those without any.

    False is for a batch that proves nothing, because it has no advantage either way; nothing is learned from it. The
    batch's own penalty would not do: it is 0 before the first update, when policy and reference are the same. The
    estimators that are asked are new ones, so that the one that trains sees each batch once.

    Raises:
        CapabilityError: there are advantages, and they are the same.
    """
    plain = _with_penalty(batch, torch.zeros_like(batch.token_rewards))
    fined = _with_penalty(batch, -_scale(batch) * _uneven(batch))
    before, after = (make()(asked).advantages for asked in (plain, fined))
    largest, change = before.abs().max(), (after - before).abs().max()
    if change > _LEAST_CHANGE * largest:
        return True
    if largest == 0:
        return False
    raise CapabilityError(
        f"{label}: its advantages are the same with and without the KL penalty, which --algo.kl.mode reward puts "
        "into the rewards of tokens; the run would train without it.\n"
        "  Set --algo.kl.mode loss, or let the estimator add the penalty, as rlhf_core.math.advantages_at_tokens does.",
        code="config/penalty-without-effect",
    )


def _with_penalty(batch: RewardBatch, penalty: torch.Tensor) -> RewardBatch:
    assert batch.kl_penalty is not None
    earned = torch.where(batch.action_mask, batch.token_rewards - batch.kl_penalty, 0.0)
    penalty = torch.where(batch.action_mask, penalty, 0.0)
    return replace(batch, token_rewards=earned + penalty, kl_penalty=penalty)


def _scale(batch: RewardBatch) -> torch.Tensor:
    """Return the size of a penalty that no whitening or critic drowns: the largest reward or value, at least 1."""
    columns = (batch.rewards, batch.token_rewards, batch.values)
    sizes = [column.abs().nan_to_num().max() for column in columns if column is not None]
    return torch.stack([*sizes, batch.rewards.new_ones(())]).max()


def _uneven(batch: RewardBatch) -> torch.Tensor:
    """Return (B, A) with 1, 2 and 3 in turns along rows and tokens: whitening would remove a constant penalty."""
    rows, actions = batch.action_mask.shape
    index = torch.arange(rows)[:, None] + torch.arange(actions)
    return (1 + index % 3).to(batch.token_rewards.dtype)
