"""The formulas that algorithms are made of: pure functions on tensors. Values at padding have no effect.

Axes: ``B`` sequences, ``A`` action tokens, ``K`` turns. Prompt and environment tokens do not exist here;
``turns.turn_credit`` alone reads a batch's columns.
"""

from typing import Any

from ..moved import moved_name
from .entropy import adapted_entropy_coef as adapted_entropy_coef
from .entropy import highest_entropy as highest_entropy
from .groups import group_mean as group_mean
from .groups import group_size as group_size
from .groups import group_std as group_std
from .groups import group_top_two as group_top_two
from .groups import group_weighted_mean as group_weighted_mean
from .groups import leave_one_out_mean as leave_one_out_mean
from .kl import MAX_KL_ESTIMATE as MAX_KL_ESTIMATE
from .kl import adapted_kl_coef as adapted_kl_coef
from .kl import kl_estimate as kl_estimate
from .kl import unbiased_kl as unbiased_kl
from .masked import aggregate as aggregate
from .masked import masked_mean as masked_mean
from .masked import masked_sum as masked_sum
from .masked import masked_var as masked_var
from .masked import pad_columns as pad_columns
from .masked import unpad as unpad
from .masked import whiten as whiten
from .policy_gradient import weighted_reinforce as weighted_reinforce
from .ratios import MAX_LOG_RATIO as MAX_LOG_RATIO
from .ratios import mismatch_metrics as mismatch_metrics
from .ratios import off_policy_mask as off_policy_mask
from .ratios import token_log_ratios as token_log_ratios
from .returns import reward_to_go as reward_to_go
from .schedule import lr_factor as lr_factor
from .sequences import credited_to_own_token as credited_to_own_token
from .sequences import row_mean as row_mean
from .turns import advantages_at_tokens as advantages_at_tokens
from .turns import num_turns as num_turns
from .turns import remaining_rewards as remaining_rewards
from .turns import rewards_by_turn as rewards_by_turn
from .turns import token_advantages as token_advantages
from .value import value_loss as value_loss


def __getattr__(name: str) -> Any:
    """Return what was here before it moved to the package of algorithms."""
    return moved_name(__name__, name)
