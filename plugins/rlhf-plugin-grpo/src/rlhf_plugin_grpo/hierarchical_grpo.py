"""Hierarchical GRPO: sequences of one episode that answer the same question are compared with each other alone.

Made for proposers and solvers. From one task an episode writes a problem and then tries to solve it several times.
Attempts at different problems cannot be compared, for one problem may be harder; neither can an attempt and a
proposal, whose rewards mean different things.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_core.math import group_mean, group_size


def peer_groups(
    first_observation: Int[Tensor, " b"], group: Int[Tensor, " b"], episode: Int[Tensor, " b"]
) -> Int[Tensor, " b"]:
    """Return the dense index of whom each row is compared with.

    - Inner: rows of an episode that start from the same text, if there are at least two: attempts at one problem.
    - Outer: rows that are the only one of their episode to start from their text, with those of the prompt's other
      episodes that start from the same: the proposals.

    Without episodes of several rows these are the prompts.

    Args:
        first_observation: index of what the policy read before the row's first action, never equal across prompts.
        group: index of the prompt.
        episode: index of the episode.
    """
    in_episode = _dense(torch.stack([episode, first_observation], dim=1))
    siblings = group_size(in_episode) > 1
    outer = _dense(torch.stack([group, first_observation], dim=1))
    # Inner and outer groups are numbered apart.
    return _dense(torch.where(siblings, in_episode, in_episode.numel() + outer)[:, None])


def hierarchical_advantages(
    rewards: Float[Tensor, "b k"], peers: Int[Tensor, " b"]
) -> Float[Tensor, "b k"]:
    """Return, by turn, ``A_i = r_i - mean(r)`` over the rows that i is compared with.

    Equal rewards among them give exactly 0, and so does a row without peers. With one row per episode it is Dr. GRPO.

    Args:
        rewards: what each row earns from turn k on.
        peers: of ``peer_groups``.

    Source: prime-rl, algorithm ``hierarchical_grpo``, where a list of roles says who is compared within an episode;
    here the text that a row starts from does.
    """
    return rewards - group_mean(rewards, peers)


def first_observations(
    observation: Int[Tensor, "b a"], action_mask: Bool[Tensor, "b a"]
) -> Int[Tensor, " b"]:
    """Return what each row read before its first action."""
    first = action_mask.to(torch.int64).argmax(dim=1, keepdim=True)  # (B, 1)
    return observation.gather(1, first)[:, 0]


def _dense(keys: Tensor) -> Tensor:
    return torch.unique(keys, dim=0, return_inverse=True)[1]
