"""Advantage estimators of verl, which takes groups of any size. Before whitening, where it whitens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_plugin_algorithms.advantages.dr_grpo import group_centered_advantages
from rlhf_plugin_algorithms.advantages.group_norm import (
    GroupNorm,
    GroupNormConfig,
    group_normalized_advantages,
)
from rlhf_plugin_algorithms.advantages.grpo_passk import best_margin_advantages
from rlhf_plugin_algorithms.advantages.opo import length_weighted_advantages
from rlhf_plugin_algorithms.advantages.optimal_token_baseline import (
    OptimalTokenBaseline,
    OptimalTokenBaselineConfig,
)
from rlhf_plugin_algorithms.advantages.remax import greedy_baseline_advantages

from .batches import Batch
from .estimator_pairs import at_tokens, episodes, our_gae, our_rloo
from .pairs import Both, pair
from .released import load
from .stand_ins import verl_index


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_gae_advantage_return",
    "advantages.gae.gae_advantages",
    case="environment tokens between actions",
)
def verl_gae(batch: Batch) -> Both:
    """Unwhitened: returns minus values. Their columns have two masked ones before every second action."""
    theirs_of = _with_environment_tokens(batch.mask.shape[1])
    width = int(theirs_of.max()) + 1

    def spread(column: Tensor, fill: float) -> Tensor:
        wide = torch.full((len(column), width), fill, dtype=column.dtype)
        return wide.index_copy(1, theirs_of, column)

    values = spread(
        batch.values.detach(), 5.0
    )  # what the critic says of environment tokens is not read
    _, returns = load("verl.trainer.ppo.core_algos").compute_gae_advantage_return(
        spread(batch.token_rewards, 0.0), values, spread(batch.float_mask, 0.0), 0.98, 0.9
    )
    raw = (returns - values)[:, theirs_of]
    return Both(ours=our_gae(batch), theirs=raw[batch.mask])


def _with_environment_tokens(width: int) -> Tensor:
    """Where action t stands when two environment tokens come before every second action."""
    return torch.tensor([t + 2 * (t // 2) for t in range(width)])


def _verl(function: str, batch: Batch, **options: Any) -> Tensor:
    """Advantages of a verl estimator for one reward at each row's end."""
    core_algos = load("verl.trainer.ppo.core_algos")
    advantages, _ = getattr(core_algos, function)(
        batch.outcome_rewards, batch.float_mask, verl_index(batch), **options
    )
    return advantages[batch.mask]


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_grpo_outcome_advantage",
    "advantages.group_norm.group_normalized_advantages",
    case="eps 1e-6",
)
def verl_grpo(batch: Batch) -> Both:
    ours = GroupNorm(GroupNormConfig(eps=1e-6))(batch.reward_batch()).advantages
    theirs = _verl("compute_grpo_outcome_advantage", batch)
    return Both(ours=ours[batch.mask], theirs=theirs)


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_grpo_outcome_advantage",
    "advantages.dr_grpo.group_centered_advantages",
    case="norm_adv_by_std_in_grpo=False",
)
def verl_dr_grpo(batch: Batch) -> Both:
    ours = group_centered_advantages(batch.rewards[:, None], batch.group, episodes(batch))
    theirs = _verl("compute_grpo_outcome_advantage", batch, norm_adv_by_std_in_grpo=False)
    return Both(ours=at_tokens(batch, ours), theirs=theirs)


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_grpo_vectorized_outcome_advantage",
    "advantages.group_norm.group_normalized_advantages",
    case="eps 1e-6",
    float32="it takes means and standard deviations in float32",
)
def verl_grpo_vectorized(batch: Batch) -> Both:
    ours = group_normalized_advantages(
        batch.rewards[:, None], batch.group, episodes(batch), eps=1e-6, correction=1
    )
    theirs = _verl("compute_grpo_vectorized_outcome_advantage", batch)
    return Both(ours=at_tokens(batch, ours), theirs=theirs)


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_rloo_outcome_advantage",
    "advantages.rloo.leave_one_out_advantages",
)
def verl_rloo(batch: Batch) -> Both:
    theirs = _verl("compute_rloo_outcome_advantage", batch)
    return Both(ours=our_rloo(batch), theirs=theirs)


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_rloo_vectorized_outcome_advantage",
    "advantages.rloo.leave_one_out_advantages",
)
def verl_rloo_vectorized(batch: Batch) -> Both:
    theirs = _verl("compute_rloo_vectorized_outcome_advantage", batch)
    return Both(ours=our_rloo(batch), theirs=theirs)


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_opo_outcome_advantage",
    "advantages.opo.length_weighted_advantages",
)
def verl_opo(batch: Batch) -> Both:
    ours = length_weighted_advantages(
        batch.rewards[:, None], batch.lengths, batch.group, episodes(batch)
    )
    theirs = _verl("compute_opo_outcome_advantage", batch)
    return Both(ours=at_tokens(batch, ours), theirs=theirs)


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_remax_outcome_advantage",
    "advantages.remax.greedy_baseline_advantages",
)
def verl_remax(batch: Batch) -> Both:
    theirs, _ = load("verl.trainer.ppo.core_algos").compute_remax_outcome_advantage(
        batch.outcome_rewards, batch.greedy_rewards, batch.float_mask
    )
    ours = greedy_baseline_advantages(batch.rewards[:, None], batch.greedy_rewards)
    return Both(ours=at_tokens(batch, ours), theirs=theirs[batch.mask])


def _verl_passk(divide_by_std: bool) -> None:
    @pair(
        "verl",
        "trainer.ppo.core_algos.compute_grpo_passk_outcome_advantage",
        "advantages.grpo_passk.best_margin_advantages",
        case=f"norm_adv_by_std_in_grpo={divide_by_std}",
    )
    def compare(batch: Batch) -> Both:
        theirs = _verl(
            "compute_grpo_passk_outcome_advantage",
            batch,
            config={"norm_adv_by_std_in_grpo": divide_by_std},
        )
        ours = best_margin_advantages(
            batch.rewards[:, None],
            batch.group,
            episodes(batch),
            divide_by_std=divide_by_std,
            eps=1e-6,
        )
        return Both(ours=at_tokens(batch, ours), theirs=theirs)


for _divide in (True, False):
    _verl_passk(_divide)


def our_optimal_token_baseline(batch: Batch, tail: str) -> Tensor:
    """At action tokens, of our component."""
    estimator = OptimalTokenBaseline(OptimalTokenBaselineConfig(tail=tail))
    return estimator(batch.reward_batch()).advantages[batch.mask]


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_optimal_token_baseline_advantage",
    "advantages.optimal_token_baseline.OptimalTokenBaseline",
    case="tail zero",
)
def verl_optimal_token_baseline(batch: Batch) -> Both:
    theirs = _verl(
        "compute_optimal_token_baseline_advantage",
        batch,
        old_log_probs=batch.old_logprobs,
        sum_pi_squared=batch.sum_pi_squared,
    )
    return Both(ours=our_optimal_token_baseline(batch, "zero"), theirs=theirs)


@pair(
    "verl",
    "trainer.ppo.core_algos.compute_multi_turn_optimal_token_baseline_advantage",
    "advantages.optimal_token_baseline.OptimalTokenBaseline",
    case="tail zero, environment tokens between actions",
)
def verl_multi_turn_optimal_token_baseline(batch: Batch) -> Both:
    theirs_of = _with_environment_tokens(batch.mask.shape[1])
    wide = {
        name: torch.zeros(len(batch.mask), int(theirs_of.max()) + 1)
        .double()
        .index_copy(1, theirs_of, column)
        for name, column in {
            "token_level_rewards": batch.outcome_rewards,
            "response_mask": batch.float_mask,
            "old_log_probs": batch.old_logprobs,
            "sum_pi_squared": batch.sum_pi_squared,
        }.items()
    }
    core_algos = load("verl.trainer.ppo.core_algos")
    theirs, _ = core_algos.compute_multi_turn_optimal_token_baseline_advantage(
        **wide, index=verl_index(batch)
    )
    ours = our_optimal_token_baseline(batch, "zero")
    return Both(ours=ours, theirs=theirs[:, theirs_of][batch.mask])
