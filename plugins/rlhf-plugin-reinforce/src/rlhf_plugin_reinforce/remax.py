"""ReMax: the baseline is what the policy's greedy response to the same prompt earned."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def greedy_baseline_advantages(
    rewards: Float[Tensor, "b k"], greedy_rewards: Float[Tensor, " b"]
) -> Float[Tensor, "b k"]:
    """Return, by turn, the reward minus that of the greedy episode: ``A_i = r_i - r_greedy``.

    The baseline does not depend on the sample, so the gradient stays unbiased. A sample that earns what the greedy one
    earned gets exactly 0. Later turns, which have less left to earn, are held against the same number.

    Args:
        rewards: what each row earns from turn k on.
        greedy_rewards: reward of the greedy episode of the row's prompt.

    Source: Li et al. 2023 (ReMax), arXiv:2310.10505.
    """
    return rewards - greedy_rewards[:, None]
