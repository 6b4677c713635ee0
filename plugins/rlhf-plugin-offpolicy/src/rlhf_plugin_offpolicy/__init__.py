"""Importance-sampling corrections, and policy losses for data that an older or another policy sampled."""

from .corrections import rlhf_is_corrections
from .losses import rlhf_policy_losses

__all__ = ["rlhf_is_corrections", "rlhf_policy_losses"]
