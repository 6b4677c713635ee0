"""RAFT: the advantage is 1 for good samples and 0 for all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.lazy import Bool, Float, Int, torch
from rlhf_core.math import group_mean, group_size, group_top_two, token_advantages


class RaftConfig(Config):
    keep: Literal["rewarded", "best"] = Field(
        "rewarded",
        description="rewarded: every sample above the threshold; best: the best samples of each prompt",
    )
    threshold: float = Field(
        0.0, ge=-1e6, le=1e6, description="keep = rewarded: reward above which a sample is kept"
    )

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"group>=2"}) if self.keep == "best" else frozenset()

    def without_effect(self) -> Mapping[str, str]:
        return {"threshold": "keep is best. Set keep rewarded."} if self.keep == "best" else {}


def best_of_group(
    rewards: Float[torch.Tensor, " b"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
) -> Bool[torch.Tensor, " b"]:
    """Return True for the rows of the episode with the largest reward of its group; of all episodes that share it.

    A group whose episodes all earned the same, a group of one among them, has no best: all are False.

    Source: Dong et al. 2023 (RAFT), arXiv:2304.06767, which keeps one sample per prompt, also among equals.
    """
    of_episode = group_mean(rewards, episode)
    largest = group_top_two(rewards, group, episode)[0]
    smallest = -group_top_two(-rewards, group, episode)[0]
    return (of_episode == largest) & (largest > smallest)


def rewarded(
    rewards: Float[torch.Tensor, " b"], episode: Int[torch.Tensor, " b"], threshold: float
) -> Bool[torch.Tensor, " b"]:
    """Return True for the rows of episodes that earned more than ``threshold``.

    Source: Xiong et al. 2025 (RAFT++), arXiv:2504.11343, with rewards of 0 and 1 and a threshold between them.
    """
    return group_mean(rewards, episode) > threshold


class Raft:
    """Advantage estimator ``raft``. The KL penalty, where it is in the reward, is added to both."""

    def __init__(self, config: RaftConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        if self.config.keep == "best":
            kept = best_of_group(batch.rewards, batch.group, batch.episode)
        else:
            kept = rewarded(batch.rewards, batch.episode, self.config.threshold)
        share = 1.0 / group_size(batch.episode)  # (B,) each episode's rows add up to 1
        metrics = {"raft/kept": Metric(torch.where(kept, share, 0.0).sum(), share.sum())}
        of_sample = kept.to(batch.rewards.dtype)[:, None]  # (B, 1)
        advantages = token_advantages(
            of_sample, batch.action_mask, torch.zeros_like(batch.turn), batch.kl_penalty
        )
        return Advantages(advantages=advantages, metrics=metrics)


COMPONENT = Component(
    name="raft",
    factory=Raft,
    config=RaftConfig,
    summary="1 for rewarded or best samples, 0 for the others (RAFT, RAFT++)",
)
