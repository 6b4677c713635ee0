"""REINFORCE leave-one-out: the baseline is the mean of the *other* samples of the prompt, so it is unbiased."""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import advantages_at_tokens, leave_one_out_mean, rewards_by_turn


def leave_one_out_advantages(
    rewards: Float[torch.Tensor, "b k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, the reward minus the mean of the rest of its group: ``A_i = r_i - mean over j != i of r_j``.

    The result is ``n / (n - 1)`` times the reward minus the mean of all n. Equal rewards in a group give exactly 0, and
    so does a group of one, which has nobody to compare with.

    Args:
        rewards: reward that each row still earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once and are left out together.

    Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free"; Ahmadian et al. 2024 (RLOO),
    arXiv:2402.14740. RLOO subtracts the KL from the reward before the baseline is taken; here the baseline is of the
    reward alone.
    """
    return rewards - leave_one_out_mean(rewards, group, episode)


class Rloo:
    """Advantage estimator ``rloo``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = leave_one_out_advantages(rewards_by_turn(batch), batch.group, batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


COMPONENT = Component(
    name="rloo",
    factory=Rloo,
    summary="reward minus the mean of the group's other samples (RLOO)",
    needs=frozenset({"group>=2"}),
)
