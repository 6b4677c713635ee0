"""The optimal token baseline: one baseline for each position, weighted by the squared gradient norms up to it.

Positions count action tokens, so the n-th token of one sample is compared with the n-th of the others, whatever the
environment wrote in between.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Bool, Float, Int, torch
from rlhf_core.math import (
    group_size,
    group_top_two,
    group_weighted_mean,
    reward_to_go,
    rewards_by_turn,
    token_advantages,
)

MIN_WEIGHT = 1e-8
"""Added to each weight: samples that the policy was sure of would otherwise have no baseline at all."""


class OptimalTokenBaselineConfig(Config):
    tail: Literal["carry", "zero"] = Field(
        "carry",
        description="baseline at positions that only one sample of a group reaches. carry: that of the last position "
        "of two samples; zero: 0, as in verl",
    )


def gradient_energy(
    old_logprobs: Float[torch.Tensor, "b a"],
    sum_pi_squared: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return ``W_t``: squared norms of the gradient by the logits, summed up to and including token t; 0 at padding.

    For a softmax the gradient of ``log pi(y)`` by the logits is ``onehot(y) - pi``, whose squared norm is
    ``w = 1 - 2 pi(y) + sum_v pi(v)^2``: 0 where the policy was sure, near 1 where y was one of very many. It stands in
    for the norm of the gradient by the weights, which no forward pass gives.

    Args:
        old_logprobs: log pi(y) of the sampled tokens, nats.
        sum_pi_squared: sum over the vocabulary of pi(v)^2, of the same distributions.
    """
    norms = 1 - 2 * torch.where(action_mask, old_logprobs, 0.0).exp() + sum_pi_squared
    # The norm is never negative in exact arithmetic; near pi(y) = 1 rounding can make it so.
    return torch.where(action_mask, norms.clamp(min=0.0), 0.0).to(torch.float64).cumsum(dim=1)


def optimal_token_advantages(
    rewards: Float[torch.Tensor, "b a"],
    energy: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
    *,
    carry: bool,
) -> Float[torch.Tensor, "b a"]:
    """Return ``A_{i,t} = r_{i,t} - sum_j(W_{j,t} r_{j,t}) / sum_j(W_{j,t})`` over the samples that reach token t.

    Equal rewards in a group give exactly 0 with ``carry``, and a group of one gives 0. Equal energies give the mean of
    the samples that are still being written.

    Args:
        rewards: reward that is still earned from the turn of each action token on.
        energy: the weights W, by ``gradient_energy``.
        group: index of the prompt.
        episode: index of the episode; each of n rows of an episode has 1/n of its weight.
        carry: the baseline of the longest sample beyond the second longest; True: the last one that two samples gave;
            False: 0.

    Source: Li et al. 2026, arXiv:2602.07078. Beyond the second longest sample the formula compares a sample with
    itself; verl 0.9.1 has 0 there by default, which leaves the reward without a baseline.
    """
    weights = (energy + MIN_WEIGHT) / group_size(episode)[:, None]  # (B, A)
    weights = torch.where(action_mask, weights, 0.0)
    baseline = group_weighted_mean(rewards, weights, group)  # (B, A)
    lengths = action_mask.sum(dim=1).to(torch.float64)
    longest = group_top_two(lengths, episode)[0]  # (B,) row of its episode
    # The second longest of the episodes, not of the rows: an episode is no baseline for itself.
    shared = group_top_two(longest, group, episode)[1].to(torch.int64)[:, None]  # (B, 1)
    position = torch.arange(action_mask.shape[1], device=rewards.device).expand_as(action_mask)
    if carry:
        baseline = baseline.gather(1, torch.minimum(position, (shared - 1).clamp(min=0)))
    else:
        baseline = torch.where(position < shared, baseline, 0.0)
    return torch.where(action_mask, rewards - baseline, 0.0)


class OptimalTokenBaseline:
    """Advantage estimator ``optimal_token_baseline``."""

    def __init__(self, config: OptimalTokenBaselineConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        mask, old, squares = batch.action_mask, batch.old_logprobs, batch.sum_pi_squared
        assert old is not None, "optimal_token_baseline is registered with needs={'old_logprobs'}"
        assert squares is not None, "... and with needs={'sum_pi_squared'}"
        advantages = optimal_token_advantages(
            token_advantages(rewards_by_turn(batch), mask, batch.turn),
            gradient_energy(old, squares, mask),
            mask,
            batch.group,
            batch.episode,
            carry=self.config.tail == "carry",
        )
        if batch.kl_penalty is not None:
            advantages = advantages + reward_to_go(batch.kl_penalty, mask)
        return Advantages(advantages=advantages)


COMPONENT = Component(
    name="optimal_token_baseline",
    factory=OptimalTokenBaseline,
    config=OptimalTokenBaselineConfig,
    summary="reward minus a baseline for each position, weighted by gradient norms (OTB)",
    needs=frozenset({"group>=2", "old_logprobs", "sum_pi_squared"}),
)
