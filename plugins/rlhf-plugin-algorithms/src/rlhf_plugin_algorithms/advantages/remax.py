"""ReMax: the baseline is the reward of the policy's greedy response to the same prompt."""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, Metric, RewardBatch
from rlhf_core.lazy import Float, torch
from rlhf_core.math import advantages_at_tokens, group_size, rewards_by_turn


def greedy_baseline_advantages(
    rewards: Float[torch.Tensor, "b k"], greedy_rewards: Float[torch.Tensor, " b"]
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, the reward minus that of the greedy episode: ``A_i = r_i - r_greedy``.

    The baseline does not depend on the sample, so the gradient stays unbiased. A sample that earns what the greedy one
    earned gets exactly 0. Later turns, which have less left to earn, are compared with the same number.

    Args:
        rewards: reward that each row still earns from turn k on.
        greedy_rewards: reward of the greedy episode of the row's prompt.

    Source: Li et al. 2023 (ReMax), arXiv:2310.10505.
    """
    return rewards - greedy_rewards[:, None]


class Remax:
    """Advantage estimator ``remax``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        greedy = batch.greedy_rewards
        assert greedy is not None, "remax is registered with needs={'greedy_rewards'}"
        by_turn = greedy_baseline_advantages(rewards_by_turn(batch), greedy)
        share = 1.0 / group_size(batch.group)  # (B,) each prompt's rows add up to 1
        metrics = {"remax/greedy_reward": Metric((greedy * share).sum(), share.sum())}
        return Advantages(advantages=advantages_at_tokens(by_turn, batch), metrics=metrics)


COMPONENT = Component(
    name="remax",
    factory=Remax,
    summary="reward minus that of the prompt's greedy response (ReMax)",
    needs=frozenset({"greedy_rewards"}),
    # The greedy episode is in no rollout batch, so no shaper sees it: its reward would be on another scale.
    conflicts=frozenset({"reward_shaper"}),
)
