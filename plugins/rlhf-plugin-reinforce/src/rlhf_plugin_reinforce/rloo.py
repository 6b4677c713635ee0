"""REINFORCE leave-one-out: the baseline is the mean of the *other* samples of the prompt, so it is unbiased."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.math import leave_one_out_mean


def leave_one_out_advantages(
    rewards: Float[Tensor, "b k"], group: Int[Tensor, " b"], episode: Int[Tensor, " b"]
) -> Float[Tensor, "b k"]:
    """Return, by turn, the reward minus the mean of the rest of its group: ``A_i = r_i - mean over j != i of r_j``.

    It is ``n / (n - 1)`` times the reward minus the mean of all n. Equal rewards in a group give exactly 0, and so does
    a group of one, which has nobody to compare with.

    Args:
        rewards: what each row earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once and are left out together.

    Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free"; Ahmadian et al. 2024 (RLOO),
    arXiv:2402.14740. There the KL is part of the reward before the baseline; here the baseline is of the reward alone.
    """
    return rewards - leave_one_out_mean(rewards, group, episode)
