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
    """Each turn's reward on its last action token, the episode's reward on the last action token of the row, or in
    parts on the tokens that the rewards name, and the KL penalty wherever it is in the reward. Of an episode of several
    rows, each holds the rewards of the others' later turns too: on the last action token before. So the sum from a
    token on is what its turn and later ones earned. 0 at padding."""
    rewards: Float[Tensor, " b"]
    """Episode reward, with all its parts, plus the rewards of all turns of the episode, without the KL penalty."""
    action_mask: Bool[Tensor, "b a"]
    """True at action tokens, False at padding."""
    group: Int[Tensor, " b"]
    """Dense index of the prompt; groups may differ in size and need not be adjacent."""
    episode: Int[Tensor, " b"]
    """Dense index of the episode; more than one row when an episode has several segments."""
    turn: Int[Tensor, "b a"]
    """Index within its episode of the turn that each action token belongs to, from 0, in the order in which the policy
    answered. Of an episode of several rows each has some of the turns. 0 at padding."""
    truncated: Bool[Tensor, " b"]
    """True where the row's last turn hit a token limit."""
    kl_penalty: Float[Tensor, "b a"] | None = None
    """The part of ``token_rewards`` that is the KL penalty, minus the coefficient times the KL; None: there is none."""
    elsewhere: Float[Tensor, "b a"] | None = None
    """The part of ``token_rewards`` that no turn of the row earned: the episode's reward where it ends, and what turns
    of the episode's other rows earned. None: credit goes row by row, as where each episode has one."""
    values: Float[Tensor, "b a"] | None = None
    """The critic's value of the state before each action token; given to components that need ``values``."""
    rewards_by_name: Mapping[str, Float[Tensor, " b"]] = field(default_factory=dict)
    """Each reward's own numbers, unweighted; NaN where a sample has none."""
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """Factor of each reward in the sum, by the same names."""
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
    """Dense index of what the policy read before the turn of each action token: the prompt before the first turn, what
    the environment showed before later ones. Within a group indices are equal exactly where token ids and images are;
    different groups share none. Given to components that need ``observations``. 0 at padding."""


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
    """Turns rewards into advantages: baseline, discounting, whitening. Sees the whole batch, before the minibatches.

    The KL penalty, where it is in the reward, acts through the advantages alone: the run ends before its first update
    if they do not depend on it. An estimator that cannot take the penalty declares ``conflicts={"kl_in_reward"}``.

    Rewards may stand on single tokens (``RewardResult.step_rewards``). An estimator that credits them there, by
    ``token_rewards``, declares ``provides={"credits_tokens"}``; others are refused beside such rewards.
    """

    def __call__(self, batch: RewardBatch) -> Advantages: ...
