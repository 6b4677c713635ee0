"""Advantage estimators: from the rewards of a whole rollout batch to one advantage per action token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..batch.metric import Metrics

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBatch:
    """The whole rollout batch, action tokens only. Rows are ordered by uid and right-padded to ``A``."""

    token_rewards: Float[Tensor, "b a"]
    """Rewards at action tokens: each turn's reward on its last action token, the episode's reward on the last action
    token of the row (or in parts on the tokens that the rewards name), and the KL penalty if it is in the reward. If an
    episode has several rows, each also holds the rewards of later turns of the other rows, on the last action token
    before. So the sum from a token on is the reward of its turn and all later turns. 0 at padding."""
    rewards: Float[Tensor, " b"]
    """Reward of the episode with all its parts, plus the rewards of all its turns, without the KL penalty."""
    action_mask: Bool[Tensor, "b a"]
    """True at action tokens, False at padding."""
    group: Int[Tensor, " b"]
    """Dense index of the prompt; groups may differ in size and need not be adjacent."""
    episode: Int[Tensor, " b"]
    """Dense index of the episode; more than one row when an episode has several segments."""
    turn: Int[Tensor, "b a"]
    """Index of the turn of each action token within its episode, from 0, in the order in which the policy answered. If
    an episode has several rows, each row has some of the turns. 0 at padding."""
    truncated: Bool[Tensor, " b"]
    """True where the row's last turn hit a token limit."""
    kl_penalty: Float[Tensor, "b a"] | None = None
    """The part of ``token_rewards`` that is the KL penalty, minus the coefficient times the KL; None: there is none."""
    elsewhere: Float[Tensor, "b a"] | None = None
    """The part of ``token_rewards`` that no turn of the row earned: the episode's reward, and the rewards of turns in
    the episode's other rows. None: credit is assigned row by row, as when each episode has one row."""
    values: Float[Tensor, "b a"] | None = None
    """The critic's value of the state before each action token; given to components that need ``values``."""
    rewards_by_name: Mapping[str, Float[Tensor, " b"]] = field(default_factory=dict)
    """Values of each reward, by its name and without its weight; NaN for samples without a value."""
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward in the sum, by the same names."""
    final_values: Float[Tensor, " b"] | None = None
    """The critic's value of the state after the last action token of rows that are truncated, 0 for others; given to
    components that need ``final_values``."""
    old_logprobs: Float[Tensor, "b a"] | None = None
    """Log-probs under the policy before this batch's updates; given to components that need ``old_logprobs``."""
    sum_pi_squared: Float[Tensor, "b a"] | None = None
    """Sum over the vocabulary of the squared probabilities of the policy at each action; given to components that need
    ``sum_pi_squared``."""
    greedy_rewards: Float[Tensor, " b"] | None = None
    """Reward of the greedy episode (temperature 0) of the row's prompt; given to components that need
    ``greedy_rewards``."""
    observation: Int[Tensor, "b a"] | None = None
    """Dense index of the observation before the turn of each action token: the prompt before the first turn, and the
    environment's observation before later turns. Within a group two indices are equal exactly if token ids and images
    are equal; groups share no indices. Given to components that need ``observations``. 0 at padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """Advantages, the weights of the policy loss, and the critic's targets."""

    advantages: Float[Tensor, "b a"]
    """Advantage of each action token. 0 at padding."""
    returns: Float[Tensor, "b a"] | None = None
    """The critic's targets; required from components that need ``values``."""
    metrics: Metrics = field(default_factory=dict)
    """Metrics of the estimator, by name."""


@runtime_checkable
class AdvantageEstimator(Protocol):
    """Turns rewards into advantages: baseline, discounting, whitening. Sees the whole batch, before the minibatches,
    and remembers no earlier one: a state over steps is a ``RewardShaper``'s.

    The KL penalty, where it is in the reward, acts through the advantages alone: the run ends before its first update
    if they do not depend on it. An estimator that cannot take the penalty declares ``conflicts={"kl_in_reward"}``.

    Rewards may stand on single tokens (``RewardResult.step_rewards``). An estimator that credits them there, by
    ``token_rewards``, declares ``provides={"credits_tokens"}``; others are refused beside such rewards.
    """

    def __call__(self, batch: RewardBatch) -> Advantages: ...
