"""Hierarchical GRPO: sequences of one episode that answer the same question are compared with each other alone.

The method is made for proposers and solvers: from one task an episode writes a problem and then tries to solve it
several times. Attempts at different problems cannot be compared, for one problem may be harder; neither can an attempt
and a proposal, whose rewards mean different things.
"""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.lazy import Bool, Float, Int, torch
from rlhf_core.math import advantages_at_tokens, group_mean, group_size, rewards_by_turn


class HierarchicalGrpoConfig(Config):
    """Hierarchical GRPO has no options."""


def peer_groups(
    first_observation: Int[torch.Tensor, " b"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
) -> Int[torch.Tensor, " b"]:
    """Return the dense index of the set of rows (peers) that each row is compared with.

    - Inner: rows of an episode that start from the same text, if there are at least two: attempts at one problem.
    - Outer: all other rows. A row that is alone in its episode with its text is compared with such rows of the prompt's
      other episodes that start from the same text: the proposals.

    Where each episode has one row, the peers are the rows of a prompt.

    Args:
        first_observation: index of what the policy read before the row's first action, never equal across
            prompts.
        group: index of the prompt.
        episode: index of the episode.
    """
    in_episode = _dense(torch.stack([episode, first_observation], dim=1))
    siblings = group_size(in_episode) > 1
    outer = _dense(torch.stack([group, first_observation], dim=1))
    # Inner and outer groups are numbered apart.
    return _dense(torch.where(siblings, in_episode, in_episode.numel() + outer)[:, None])


def hierarchical_advantages(
    rewards: Float[torch.Tensor, "b k"], peers: Int[torch.Tensor, " b"]
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, ``A_i = r_i - mean(r)`` over the rows that i is compared with.

    Equal rewards among them give exactly 0, and so does a row without peers. With one row per episode it is Dr. GRPO.

    Args:
        rewards: reward that each row still earns from turn k on.
        peers: index of each row's peers, by ``peer_groups``.

    Source: prime-rl, algorithm ``hierarchical_grpo``, where a list of roles says who is compared within an episode;
    here the text that a row starts from does.
    """
    return rewards - group_mean(rewards, peers)


def first_observations(
    observation: Int[torch.Tensor, "b a"], action_mask: Bool[torch.Tensor, "b a"]
) -> Int[torch.Tensor, " b"]:
    """Return the index of the text that each row read before its first action."""
    first = action_mask.to(torch.int64).argmax(dim=1, keepdim=True)  # (B, 1)
    return observation.gather(1, first)[:, 0]


def _dense(keys: torch.Tensor) -> torch.Tensor:
    dense: torch.Tensor = torch.unique(keys, dim=0, return_inverse=True)[1]
    return dense


class HierarchicalGrpo:
    """Advantage estimator ``hierarchical_grpo``."""

    def __init__(self, config: HierarchicalGrpoConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        assert batch.observation is not None, (
            "hierarchical_grpo is registered with needs={'observations'}"
        )
        first = first_observations(batch.observation, batch.action_mask)
        peers = peer_groups(first, batch.group, batch.episode)
        by_turn = hierarchical_advantages(rewards_by_turn(batch), peers)
        alone = torch.bincount(peers)[peers] == 1  # (B,)
        return Advantages(
            advantages=advantages_at_tokens(by_turn, batch),
            metrics={"hierarchical_grpo/without_peers": Metric(alone.sum(), len(alone))},
        )


COMPONENT = Component(
    name="hierarchical_grpo",
    factory=HierarchicalGrpo,
    config=HierarchicalGrpoConfig,
    summary="rewards against those of the same episode and starting text (proposer and solvers)",
    needs=frozenset({"group>=2", "observations"}),
)
