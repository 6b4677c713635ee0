"""GPG's loss: the policy gradient itself, without a ratio and so without an old policy."""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, TokenLoss
from rlhf_core.lazy import Bool, Float, torch


def gpg_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return ``-log policy * A``; 0 at padding, whatever stands there, nan included.

    Its gradient is ``-A`` at every token, however far the policy has moved since it sampled them: exact for the first
    update of a batch, biased from the second on.

    Source: Chu et al. 2025, arXiv:2504.02546.
    """
    # Padding is replaced before the product: a nan there would come back in the backward pass as 0 * nan.
    logprobs = torch.where(action_mask, policy_logprobs, 0.0)
    return -logprobs * torch.where(action_mask, advantages, 0.0)


class GpgLoss:
    """Policy loss ``gpg``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        return TokenLoss(
            loss=gpg_loss(inputs.policy_logprobs, inputs.advantages, inputs.action_mask)
        )


COMPONENT = Component(
    name="gpg",
    factory=GpgLoss,
    summary="minus log-prob times advantage, without a ratio (GPG, plain policy gradient)",
    provides=frozenset({"aggregation:token-mean"}),
)
