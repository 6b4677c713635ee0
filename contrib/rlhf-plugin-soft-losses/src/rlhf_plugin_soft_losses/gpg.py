"""GPG's loss: the policy gradient itself, without a ratio and so without an old policy."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def gpg_loss(
    policy_logprobs: Float[Tensor, "b a"],
    advantages: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
) -> Float[Tensor, "b a"]:
    """Return ``-log policy * A``; 0 at padding, whatever stands there, nan included.

    Its gradient is ``-A`` at every token, however far the policy has moved since it sampled them: exact for the first
    update of a batch, biased from the second on.

    Source: Chu et al. 2025, arXiv:2504.02546.
    """
    # Padding is replaced before the product: a nan there would come back in the backward pass as 0 * nan.
    logprobs = torch.where(action_mask, policy_logprobs, 0.0)
    return -logprobs * torch.where(action_mask, advantages, 0.0)
