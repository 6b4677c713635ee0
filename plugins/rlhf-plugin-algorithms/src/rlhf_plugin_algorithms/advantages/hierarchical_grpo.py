"""Hierarchical GRPO: sequences of one episode that answer the same question are compared with each other alone.

The method is made for proposers and solvers: from one task an episode writes a problem and then tries to solve it
several times. Attempts at different problems cannot be compared, for one problem may be harder; neither can an attempt
and a proposal, whose rewards mean different things.
"""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.lazy import Bool, Float, Int, torch
from rlhf_core.math import (
    group_mean,
    group_size,
    remaining_rewards,
    rewards_by_turn,
    token_advantages,
)


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
        rewards: reward from turn k on: of attempts what they themselves earned, of others what the episode did.
        peers: index of each row's peers, by ``peer_groups``.

    Source: prime-rl, algorithm ``hierarchical_grpo``, where a list of roles says who is compared within an episode;
    here the text that a row starts from does.
    """
    return rewards - group_mean(rewards, peers)


def own_turns(
    turn: Int[torch.Tensor, "b a"], action_mask: Bool[torch.Tensor, "b a"]
) -> Int[torch.Tensor, "b a"]:
    """Return the index within its row of each action token's turn, from 0; 0 at padding."""
    begins = torch.nn.functional.pad(turn.diff(dim=1) != 0, (1, 0))  # (B, A)
    return torch.where(action_mask, begins.cumsum(dim=1), 0)


def own_rewards_by_turn(batch: RewardBatch) -> Float[torch.Tensor, "b k"]:
    """Return what each row earned from its own turn k on, the episode's reward included, other rows' turns not.

    Where each episode has one row it is what the episode earned, to the bit.
    """
    if batch.elsewhere is None:
        return rewards_by_turn(batch)
    earned = batch.token_rewards - batch.elsewhere
    earned = earned if batch.kl_penalty is None else earned - batch.kl_penalty
    earned = torch.where(batch.action_mask, earned, 0.0)  # (B, A)
    of_row = earned.sum(dim=1)  # (B,)
    of_episode = torch.zeros_like(of_row).index_add(0, batch.episode, of_row)[batch.episode]
    of_others = torch.where(group_size(batch.episode) > 1, of_episode - of_row, 0.0)
    turns = own_turns(batch.turn, batch.action_mask)
    return remaining_rewards(batch.rewards - of_others, earned, batch.action_mask, turns)


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

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        assert batch.observation is not None, (
            "hierarchical_grpo is registered with needs={'observations'}"
        )
        first = first_observations(batch.observation, batch.action_mask)
        peers = peer_groups(first, batch.group, batch.episode)
        mask, penalty = batch.action_mask, batch.kl_penalty
        to_go = hierarchical_advantages(rewards_by_turn(batch), peers)  # (B, K)
        own = hierarchical_advantages(own_rewards_by_turn(batch), peers)  # (B, K)
        # An attempt that came earlier did not earn what later attempts at the same problem did.
        is_attempt = group_size(_dense(torch.stack([batch.episode, peers], dim=1))) > 1  # (B,)
        alone = torch.bincount(peers)[peers] == 1  # (B,)
        return Advantages(
            advantages=torch.where(
                is_attempt[:, None],
                token_advantages(own, mask, own_turns(batch.turn, mask), penalty),
                token_advantages(to_go, mask, batch.turn, penalty),
            ),
            metrics={"hierarchical_grpo/without_peers": Metric(alone.sum(), len(alone))},
        )


COMPONENT = Component(
    name="hierarchical_grpo",
    factory=HierarchicalGrpo,
    summary="rewards against those of the same episode and starting text (proposer and solvers)",
    needs=frozenset({"group>=2", "observations"}),
)
