"""GiGPO: groups within groups. Episodes of a prompt are compared, and so are turns that started from the same text.

Where an environment is often in the same state, the turns that start there are a second, finer group at no cost: a turn
is judged by the rewards that followed it, apart from how the rest of the episode went.

``A = A_E + step_weight * A_S`` at every token of a turn: A_E compares the rewards of whole episodes of a prompt, A_S
the discounted rewards from the turn on, among the turns that read the same text.

Source: Feng et al. 2025 (GiGPO), arXiv:2505.10978.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.lazy import Bool, Float, Int, torch
from rlhf_core.math import (
    advantages_at_tokens,
    group_mean,
    group_size,
    group_std,
    num_turns,
    rewards_by_turn,
)


class GigpoConfig(Config):
    step_weight: float = Field(
        1.0,
        ge=0.0,
        le=100.0,
        description="weight of the comparison of turns; 0: only episodes are compared",
    )
    gamma: float = Field(
        0.95, ge=0.0, le=1.0, description="discount per turn, in the comparison of turns"
    )
    norm: Literal["std", "none"] = Field(
        "std",
        description="std: divide both comparisons by their standard deviations (with n - 1); none: do not divide",
    )
    eps: float = Field(
        1e-4, ge=1e-6, le=1.0, description="added to the standard deviation, in units of the reward"
    )

    def without_effect(self) -> Mapping[str, str]:
        idle = {"gamma": "step_weight is 0. Set it above 0."} if self.step_weight == 0 else {}
        return idle | ({"eps": "norm is none. Set norm std."} if self.norm == "none" else {})


def discounted_by_turn(
    rewards: Float[torch.Tensor, "b k"], turns: Int[torch.Tensor, " b"], *, gamma: float
) -> Float[torch.Tensor, "b k"]:
    """Return the reward from each turn on, discounted by turn: ``D_k = e_k + gamma * D_{k+1}``, e_k earned in turn k.

    ``gamma=1`` gives ``rewards`` to the bit. Turns that an episode does not have hold the number of its last turn.

    Args:
        rewards: reward that each row's episode still earns from turn k on, undiscounted.
        turns: number of turns of each row's episode.
        gamma: discount per turn, in [0, 1].
    """
    discounted = rewards.clone()
    for k in range(rewards.shape[1] - 2, -1, -1):
        # e_k is rewards[k] - rewards[k + 1]; in this order nothing is rounded with gamma = 1.
        later = gamma * discounted[:, k + 1] - rewards[:, k + 1]
        discounted[:, k] = torch.where(k < turns - 1, rewards[:, k] + later, rewards[:, k])
    return discounted


def step_groups(
    observation: Int[torch.Tensor, "b a"],
    turn: Int[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    num_columns: int,
) -> Int[torch.Tensor, "b k"]:
    """Return the dense index of the text that was read before each turn; -1 for turns that a row does not have."""
    empty = torch.full((len(turn), num_columns), -1, dtype=torch.int64, device=turn.device)
    turn = torch.where(action_mask, turn, 0)
    # All tokens of a turn hold the same index, and padding holds -1: the largest is the turn's.
    return empty.scatter_reduce(1, turn, torch.where(action_mask, observation, -1), "amax")


def step_advantages(
    discounted: Float[torch.Tensor, "b k"],
    groups: Int[torch.Tensor, "b k"],
    *,
    divide_by_std: bool,
    eps: float,
) -> tuple[Float[torch.Tensor, "b k"], Int[torch.Tensor, "b k"]]:
    """Return ``A_S = D - mean(D)`` over the turns that read the same text, and the number of these; 0 where no turn is.

    ``divide_by_std`` divides by ``std(D) + eps`` (n - 1). A turn that read what no other did gives 0. Every turn
    counts, also several of one episode.
    """
    exists = groups >= 0
    values, index = discounted[exists], torch.unique(groups[exists], return_inverse=True)[1]
    advantage = values - group_mean(values, index)
    if divide_by_std:
        advantage = advantage / (group_std(values, index) + eps)
    empty = torch.zeros_like(discounted)
    return empty.masked_scatter(exists, advantage), torch.zeros_like(groups).masked_scatter(
        exists, group_size(index)
    )


def episode_advantages(
    rewards: Float[torch.Tensor, " b"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
    *,
    divide_by_std: bool,
    eps: float,
) -> Float[torch.Tensor, " b"]:
    """Return ``A_E = R_i - mean(R)`` within each group: whole episodes compared, each counting once.

    ``divide_by_std`` divides by ``std(R) + eps`` (n - 1).
    """
    advantage = rewards - group_mean(rewards, group, episode)
    if divide_by_std:
        advantage = advantage / (group_std(rewards, group, episode) + eps)
    return advantage


class Gigpo:
    """Advantage estimator ``gigpo``."""

    def __init__(self, config: GigpoConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        assert batch.observation is not None, "gigpo is registered with needs={'observations'}"
        config, mask, by_turn = self.config, batch.action_mask, rewards_by_turn(batch)
        groups = step_groups(batch.observation, batch.turn, mask, by_turn.shape[1])
        discounted = discounted_by_turn(by_turn, num_turns(batch), gamma=config.gamma)
        divide = config.norm == "std"
        of_turn, size = step_advantages(discounted, groups, divide_by_std=divide, eps=config.eps)
        of_episode = episode_advantages(
            batch.rewards, batch.group, batch.episode, divide_by_std=divide, eps=config.eps
        )
        by_turn = of_episode[:, None] + config.step_weight * of_turn  # (B, K) A = A_E + w A_S
        shared = Metric((size > 1).sum(), (size > 0).sum())
        return Advantages(
            advantages=advantages_at_tokens(by_turn, batch), metrics={"gigpo/shared_turns": shared}
        )


COMPONENT = Component(
    name="gigpo",
    factory=Gigpo,
    config=GigpoConfig,
    summary="GRPO of episodes, plus GRPO of turns that started from the same text (GiGPO)",
    needs=frozenset({"group>=2", "observations"}),
)
