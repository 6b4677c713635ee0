"""The formulas that algorithms are made of: pure functions on tensors. Values at padding have no effect.

Axes: ``B`` sequences, ``A`` action tokens, ``K`` turns. Prompt and environment tokens do not exist here;
``turns.turn_credit`` alone reads a batch's columns.
"""

from typing import Any

from ..moved import moved_name
from .entropy import adapted_entropy_coef
from .groups import (
    group_mean,
    group_size,
    group_std,
    group_top_two,
    group_weighted_mean,
    leave_one_out_mean,
)
from .kl import MAX_KL_ESTIMATE, adapted_kl_coef, kl_estimate, unbiased_kl
from .masked import aggregate, masked_mean, masked_sum, masked_var, pad_columns, unpad, whiten
from .policy_gradient import weighted_reinforce
from .ratios import MAX_LOG_RATIO, mismatch_metrics, token_log_ratios
from .returns import reward_to_go
from .schedule import lr_factor
from .sequences import credited_to_own_token, row_mean
from .turns import (
    advantages_at_tokens,
    num_turns,
    remaining_rewards,
    rewards_by_turn,
    token_advantages,
)
from .value import value_loss

__all__ = [
    "MAX_KL_ESTIMATE",
    "MAX_LOG_RATIO",
    "adapted_entropy_coef",
    "adapted_kl_coef",
    "advantages_at_tokens",
    "aggregate",
    "credited_to_own_token",
    "group_mean",
    "group_size",
    "group_std",
    "group_top_two",
    "group_weighted_mean",
    "kl_estimate",
    "leave_one_out_mean",
    "lr_factor",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "mismatch_metrics",
    "num_turns",
    "pad_columns",
    "remaining_rewards",
    "reward_to_go",
    "rewards_by_turn",
    "row_mean",
    "token_advantages",
    "token_log_ratios",
    "unbiased_kl",
    "unpad",
    "value_loss",
    "weighted_reinforce",
    "whiten",
]


def __getattr__(name: str) -> Any:
    """Return what was here before it moved to the package of algorithms."""
    return moved_name(__name__, name)
