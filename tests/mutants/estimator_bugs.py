"""Bugs in advantages: baselines, whitening, discounting, masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .mutant import Mutant

HOOK = "rlhf_advantage_estimators"
Function = Callable[..., Any]


def tiny_eps(right: Function) -> Function:
    """The mean and the deviation in float32, and an eps that rounding noise exceeds."""

    def wrong(rewards: Tensor, group: Tensor, episode: Tensor, *, eps: float, correction: int):
        out = torch.empty_like(rewards)
        for index in group.unique():
            rows = rewards[group == index]
            std = rows.std(dim=0, keepdim=True, correction=correction if len(rows) > 1 else 0)
            out[group == index] = (rows - rows.mean(dim=0, keepdim=True)) / (std + 1e-9)
        return out

    return wrong


def baseline_by_reshape(right: Function) -> Function:
    """Every two neighbors are taken for a group."""

    def wrong(rewards: Tensor, group: Tensor, episode: Tensor) -> Tensor:
        if len(rewards) % 2:
            return right(rewards, group, episode)
        return (rewards.view(-1, 2, rewards.shape[1]) - rewards.view(-1, 2, rewards.shape[1]).mean(
            dim=1, keepdim=True
        )).view_as(rewards)  # fmt: skip

    return wrong


def whiten_with_padding(right: Function) -> Function:
    def wrong(values: Tensor, mask: Tensor, *, divide_by_std: bool = True) -> Tensor:
        return torch.where(mask, (values - values.mean()) / (values.std() + 1e-8), 0.0)

    return wrong


def whiten_per_prompt(right: Any) -> Function:
    def wrong(batch: Any) -> Any:
        result = right(batch)
        advantages = result.advantages.clone()
        for index in batch.group.unique():
            rows = batch.group == index
            mask = batch.action_mask[rows]
            spread = advantages[rows][mask].std(correction=0)
            advantages[rows] = advantages[rows] / (spread + 1e-8)
        return replace(result, advantages=advantages)

    return wrong


def whiten_by_sample_std(right: Function) -> Function:
    def wrong(values: Tensor, mask: Tensor, *, divide_by_std: bool = True) -> Tensor:
        kept = values[mask]
        return torch.where(mask, (values - kept.mean()) / (kept.std(correction=1) + 1e-8), 0.0)

    return wrong


def one_scale_per_prompt(right: Function) -> Function:
    """Whitening that cannot see which rows belong together takes each row for a batch."""

    def wrong(values: Tensor, mask: Tensor, *, divide_by_std: bool = True) -> Tensor:
        kept = torch.where(mask, values, 0.0)
        mean = kept.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
        deviation = torch.where(mask, values - mean, 0.0)
        spread = deviation.square().sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
        return deviation / (spread + 1e-8).sqrt()

    return wrong


def discount_over_environment(right: Any) -> Function:
    """Each new turn of a row costs a discount of 0.9: the time that the environment's text took."""

    def wrong(batch: Any) -> Any:
        result = right(batch)
        last = batch.turn.amax(dim=1, keepdim=True)
        decay = torch.pow(torch.tensor(0.9, dtype=result.advantages.dtype), last - batch.turn)
        return replace(result, advantages=result.advantages * decay)

    return wrong


def kl_without_mask(right: Function) -> Function:
    """The penalty to come is summed over padding too."""

    def wrong(by_turn: Tensor, batch: Any) -> Tensor:
        advantages = right(by_turn, replace(batch, kl_penalty=None))
        if batch.kl_penalty is None:
            return advantages
        to_come = batch.kl_penalty.flip(1).cumsum(dim=1).flip(1)
        return torch.where(batch.action_mask, advantages + to_come, 0.0)

    return wrong


def kl_with_wrong_sign(right: Function) -> Function:
    def wrong(by_turn: Tensor, batch: Any) -> Tensor:
        if batch.kl_penalty is None:
            return right(by_turn, batch)
        return right(by_turn, replace(batch, kl_penalty=-batch.kl_penalty))

    return wrong


def values_at_padding(right: Function) -> Function:
    """The value after the last token is whatever stands at padding."""

    def wrong(token_rewards, values, action_mask, *, gamma, lambda_, **options):
        shifted = torch.nn.functional.pad(values[:, 1:], (0, 1))
        ends = action_mask & ~torch.nn.functional.pad(action_mask[:, 1:], (0, 1))
        rewards = torch.where(ends, token_rewards + gamma * shifted, token_rewards)
        return right(rewards, values, action_mask, gamma=gamma, lambda_=lambda_, **options)

    return wrong


def returns_of_whitened(right: Any) -> Function:
    def wrong(self: Any, batch: Any) -> Any:
        result = right(self, batch)
        returns = torch.where(batch.action_mask, result.advantages + batch.values, 0.0)
        return replace(result, returns=returns)

    return wrong


def clip_after_the_baseline(right: Any) -> Function:
    def wrong(batch: Any) -> Any:
        result = right(batch)
        return replace(result, advantages=result.advantages.clamp(-1.0, 1.0))

    return wrong


def in_place(right: Any) -> Function:
    def wrong(batch: Any) -> Any:
        batch.rewards.sub_(batch.rewards.mean())
        return right(batch)

    return wrong


def mask_by_multiplication(right: Function) -> Function:
    def wrong(token_rewards: Tensor, action_mask: Tensor, discount: float = 1.0) -> Tensor:
        kept = (token_rewards * action_mask).flip(1)
        total = torch.zeros_like(kept[:, 0])
        sums = []
        for column in kept.unbind(dim=1):
            total = column + discount * total
            sums.append(total)
        return torch.stack(sums, dim=1).flip(1) * action_mask

    return wrong


def reward_at_the_last_column(right: Function) -> Function:
    """The reward to go is read at the row's last column, which is padding for short rows."""

    def wrong(token_rewards: Tensor, action_mask: Tensor, discount: float = 1.0) -> Tensor:
        rolled = torch.roll(token_rewards, 1, dims=1)
        return right(rolled, action_mask, discount)

    return wrong


MUTANTS = (
    Mutant(
        bug="an eps of 1e-9 on a float32 deviation blows equal rewards up",
        source="OpenRLHF 0.11.2, group_norm",
        hook=HOOK,
        component="group_norm",
        target="rlhf_plugin_algorithms.advantages.group_norm:group_normalized_advantages",
        wrap=tiny_eps,
    ),
    Mutant(
        bug="group baseline by reshape: wrong for unequal or shuffled groups",
        source="OpenRLHF 0.11.2, rewards.reshape(-1, n)",
        hook=HOOK,
        component="reinforce_baseline",
        target="rlhf_plugin_algorithms.advantages.reinforce_baseline:group_baseline_advantages",
        wrap=baseline_by_reshape,
    ),
    Mutant(
        bug="whitening over padding as well",
        source="the class of slime#1372, a sum without its mask",
        hook=HOOK,
        component="reinforce_baseline",
        target="rlhf_plugin_algorithms.advantages.reinforce_baseline:whiten",
        wrap=whiten_with_padding,
    ),
    Mutant(
        bug="whitening apart for each prompt instead of over the batch",
        source="slime#2235, whitening over the wrong group",
        hook=HOOK,
        component="reinforce_baseline",
        wrap=whiten_per_prompt,
    ),
    Mutant(
        bug="whitening row by row",
        source="the class of slime#2235, whitening over the wrong set",
        hook=HOOK,
        component="reinforce",
        target="rlhf_plugin_algorithms.advantages.reinforce:whiten",
        wrap=one_scale_per_prompt,
    ),
    Mutant(
        bug="whitening with the sample deviation (n - 1)",
        source="ddof: OpenRLHF has n - 1 in groups and n in whitening",
        hook=HOOK,
        component="reinforce_baseline",
        target="rlhf_plugin_algorithms.advantages.reinforce_baseline:whiten",
        wrap=whiten_by_sample_std,
    ),
    Mutant(
        bug="GAE discounts over environment tokens",
        source="OpenRLHF 0.11.2, GAE over masked columns",
        hook=HOOK,
        component="gae",
        wrap=discount_over_environment,
    ),
    Mutant(
        bug="the KL penalty is summed without the mask",
        source="slime#1372",
        hook=HOOK,
        component="rloo",
        target="rlhf_plugin_algorithms.advantages.rloo:advantages_at_tokens",
        wrap=kl_without_mask,
    ),
    Mutant(
        bug="the KL penalty has the wrong sign",
        source="the class of TRL#5731, a wrong divergence",
        hook=HOOK,
        component="group_norm",
        target="rlhf_plugin_algorithms.advantages.group_norm:advantages_at_tokens",
        wrap=kl_with_wrong_sign,
    ),
    Mutant(
        bug="GAE bootstraps from the value at padding",
        source="the class of AReaL#1346, a mask off by one",
        hook=HOOK,
        component="gae",
        target="rlhf_plugin_algorithms.advantages.gae:gae_advantages",
        wrap=values_at_padding,
    ),
    Mutant(
        bug="the critic learns whitened advantages plus values",
        source="the class of verl#6957, the critic on a wrong scale",
        hook=HOOK,
        component="gae",
        target="rlhf_plugin_algorithms.advantages.gae:GaeEstimator.__call__",
        wrap=returns_of_whitened,
    ),
    Mutant(
        bug="rewards are clipped after the baseline instead of before",
        source="OpenRLHF 0.11.2, clip_range cuts the centered reward",
        hook=HOOK,
        component="dr_grpo",
        wrap=clip_after_the_baseline,
    ),
    Mutant(
        bug="the batch's rewards are changed in place",
        source="the class of TRL#5147, a write into memory of others",
        hook=HOOK,
        component="rloo",
        wrap=in_place,
    ),
    Mutant(
        bug="masking by multiplication lets nan at padding through",
        source="OpenRLHF#1240",
        hook=HOOK,
        component="reinforce",
        target="rlhf_plugin_algorithms.advantages.reinforce:reward_to_go",
        wrap=mask_by_multiplication,
    ),
    Mutant(
        bug="rewards lie one token too far right",
        source="the class of AReaL#1346, tokens and masks off by one",
        hook=HOOK,
        component="reinforce",
        target="rlhf_plugin_algorithms.advantages.reinforce:reward_to_go",
        wrap=reward_at_the_last_column,
    ),
)
