"""Advantages for pass@k: a sample is judged by how much it adds to the best of a set, not by its own reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Bool, Float, Int, torch
from rlhf_core.math import (
    advantages_at_tokens,
    group_mean,
    group_size,
    group_std,
    group_top_two,
    rewards_by_turn,
)


class GrpoPasskConfig(Config):
    advantage: Literal["margin", "analytic"] = Field(
        "margin",
        description="margin: the best sample gets its lead over the second; analytic: each gets its mean over all "
        "sets of k samples",
    )
    std: Literal["sample", "none"] = Field(
        "sample",
        description="margin: sample divides by the group's standard deviation (with n - 1), none does not",
    )
    eps: float = Field(
        1e-4,
        ge=1e-6,
        le=1.0,
        description="margin: added to the standard deviation, in units of the reward",
    )
    k: int = Field(4, ge=1, le=1024, description="analytic: number of samples in a set")
    correct_above: float = Field(
        0.0,
        ge=-1e6,
        le=1e6,
        description="analytic: reward above which a sample is correct",
    )

    def needed_by_options(self) -> frozenset[str]:
        """A set of k needs a group of at least k."""
        return (
            frozenset({f"group>={self.k}"})
            if self.advantage == "analytic" and self.k > 2
            else frozenset()
        )

    def without_effect(self) -> Mapping[str, str]:
        """The options of the other advantage, and the eps of what no deviation divides."""
        if self.advantage == "analytic":
            return dict.fromkeys(("std", "eps"), "advantage is analytic. Set advantage margin.")
        idle = dict.fromkeys(("k", "correct_above"), "advantage is margin. Set advantage analytic.")
        return idle | ({"eps": "std is none. Set std sample."} if self.std == "none" else {})


def best_margin_advantages(
    rewards: Float[torch.Tensor, "b k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
    *,
    divide_by_std: bool,
    eps: float,
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, ``largest r - second largest r`` for the group's best sample and 0 for the others.

    The margin is the amount by which the group's maximum, and with n = k its pass@k, would fall without the sample.
    ``divide_by_std`` divides it by the group's ``std + eps`` (n - 1). Where several samples share the largest reward
    no single one is needed, so all get 0; so do equal rewards and a group of one.

    Args:
        rewards: reward that each row still earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once, as their mean.
        eps: added to the standard deviation, in units of the reward.

    Source: Tang et al. 2025, arXiv:2503.19595, as in verl 0.9.1's ``grpo_passk``.
    """
    of_episode = group_mean(rewards, episode)  # (B, K)
    largest, second = group_top_two(of_episode, group, episode)
    margin = torch.where(of_episode == largest, largest - second, 0.0)
    if divide_by_std:
        # The deviation is that of the numbers that the margin compares: of episodes, not of rows.
        margin = margin / (group_std(of_episode, group, episode) + eps)
    return margin


def analytic_passk_advantages(
    correct: Bool[torch.Tensor, " b"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
    *,
    k: int,
) -> Float[torch.Tensor, " b"]:
    """Return the expected advantage of a sample over all sets of k that can be drawn from its group; float64.

    A set earns 1 if one of its samples is correct. With n samples, m of them wrong, sets drawn without replacement
    have the mean ``R = 1 - C(m, k) / C(n, k)`` and the standard deviation ``S = sqrt(R (1 - R))``. A sample's
    advantage is the mean of ``(reward of the set - R) / S`` over the sets that hold it:

    - correct: ``(1 - R) / S``
    - wrong: ``(1 - R - C(m - 1, k - 1) / C(n - 1, k - 1)) / S``

    ``k=1`` gives GRPO's advantage with the population's standard deviation and no eps. Where every set earns the same
    the result is 0: all samples correct, all wrong, or fewer than k wrong. A group smaller than k gives 0 too.

    Args:
        correct: True at all rows of an episode that is correct.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once.
        k: size of the sets, at least 1.

    Source: Chen et al. 2025 (Pass@k Training), arXiv:2508.10751, the analytic derivation; their code adds 1e-6 to S,
    here the result is 0 where S is 0.
    """
    size = group_size(group, episode)  # (B,)
    # A mean of zeros and ones times the size is a whole number up to rounding.
    num_wrong = (group_mean((~correct).to(torch.float64), group, episode) * size).round()
    all_wrong = _share_of_sets(num_wrong, size, k)  # (B,) 1 - R
    # (B,) C(m - 1, k - 1) / C(n - 1, k - 1): the other k - 1 samples of a set are wrong as well
    others_wrong = _share_of_sets(num_wrong - 1, size - 1, k - 1)
    std = (all_wrong * (1 - all_wrong)).sqrt()  # (B,) S
    advantage = all_wrong - torch.where(correct, 0.0, others_wrong)
    varies = std > 0
    return torch.where(varies, advantage / torch.where(varies, std, 1.0), 0.0)


def _share_of_sets(part: torch.Tensor, size: torch.Tensor, drawn: int) -> torch.Tensor:
    """Return ``C(part, drawn) / C(size, drawn)``, the share of sets that lie within ``part``; 0 without any."""
    place = torch.arange(drawn, device=size.device, dtype=torch.float64)  # (drawn,)
    factors = (part[:, None] - place).clamp(min=0.0) / (size[:, None] - place).clamp(min=1.0)
    return factors.prod(dim=1)


class GrpoPassk:
    """Advantage estimator ``grpo_passk``."""

    def __init__(self, config: GrpoPasskConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        config, by_turn = self.config, rewards_by_turn(batch)
        if config.advantage == "margin":
            by_turn = best_margin_advantages(
                by_turn,
                batch.group,
                batch.episode,
                divide_by_std=config.std == "sample",
                eps=config.eps,
            )
        else:
            correct = group_mean(batch.rewards, batch.episode) > config.correct_above
            of_sample = analytic_passk_advantages(correct, batch.group, batch.episode, k=config.k)
            by_turn = of_sample.to(by_turn.dtype)[:, None].expand_as(by_turn)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


COMPONENT = Component(
    name="grpo_passk",
    factory=GrpoPassk,
    config=GrpoPasskConfig,
    summary="what a sample adds to the best of its group (pass@k)",
    needs=frozenset({"group>=2"}),
)
