"""GiGPO: groups within groups. Episodes of a prompt are compared, and so are turns that started from the same text.

Where an environment is often in the same state, those turns are a second, finer group for free: what was done there
is judged by what came of it, apart from how the rest of the episode went.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_core.math import group_mean, group_size, group_std


def discounted_by_turn(
    rewards: Float[Tensor, "b k"], num_turns: Int[Tensor, " b"], *, gamma: float
) -> Float[Tensor, "b k"]:
    """Return what each turn earned and what the later ones did, discounted by turn: ``D_k = e_k + gamma * D_{k+1}``.

    ``gamma=1`` gives ``rewards`` to the bit. Turns that a row does not have hold what its last one holds.

    Args:
        rewards: what each row earns from turn k on, undiscounted.
        num_turns: of each row.
        gamma: discount per turn, in [0, 1].
    """
    discounted = rewards.clone()
    for k in range(rewards.shape[1] - 2, -1, -1):
        # e_k is rewards[k] - rewards[k + 1]; in this order nothing is rounded with gamma = 1.
        later = gamma * discounted[:, k + 1] - rewards[:, k + 1]
        discounted[:, k] = torch.where(k < num_turns - 1, rewards[:, k] + later, rewards[:, k])
    return discounted


def step_groups(
    observation: Int[Tensor, "b a"],
    turn: Int[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    num_columns: int,
) -> Int[Tensor, "b k"]:
    """Return the dense index of what was read before each turn; -1 for turns that a row does not have."""
    empty = torch.full((len(turn), num_columns), -1, dtype=torch.int64, device=turn.device)
    turn = torch.where(action_mask, turn, 0)
    # All tokens of a turn hold the same index, and padding holds -1: the largest is the turn's.
    return empty.scatter_reduce(1, turn, torch.where(action_mask, observation, -1), "amax")


def step_advantages(
    discounted: Float[Tensor, "b k"], groups: Int[Tensor, "b k"], *, divide_by_std: bool, eps: float
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """Return ``A_s = D_s - mean(D)`` over the turns that read the same, and how many there are; 0 where no turn is.

    Divided by ``std(D) + eps`` (n - 1) if asked. A turn that nobody shares gives 0. Every visit counts, also several
    of one episode.
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
