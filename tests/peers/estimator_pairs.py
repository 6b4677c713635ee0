"""Advantage estimators of OpenRLHF and TRL, which want groups of one size. Whitened where the peer whitens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_core import Config
from rlhf_plugin_algorithms.advantages.dr_grpo import DrGrpo
from rlhf_plugin_algorithms.advantages.flash_reinforce import FlashReinforce
from rlhf_plugin_algorithms.advantages.gae import GaeConfig, GaeEstimator, gae_advantages
from rlhf_plugin_algorithms.advantages.gdpo import decoupled_advantages
from rlhf_plugin_algorithms.advantages.group_norm import (
    GroupNorm,
    GroupNormConfig,
    group_normalized_advantages,
)
from rlhf_plugin_algorithms.advantages.reinforce import Reinforce, ReinforceConfig
from rlhf_plugin_algorithms.advantages.reinforce_baseline import (
    ReinforceBaseline,
    ReinforceBaselineConfig,
)
from rlhf_plugin_algorithms.advantages.rloo import Rloo, leave_one_out_advantages

from .batches import Batch
from .pairs import Both, pair
from .released import load
from .stand_ins import openrlhf_advantages, trl_scored

MAKER = "trainer.ppo_utils.experience_maker.compute_advantages_and_returns"
WHITENS_IN_FLOAT32 = "it takes the mean and variance of the advantages in float32"
KL_COEF = 0.3


def at_tokens(batch: Batch, by_row: Tensor) -> Tensor:
    """(B, 1) -> (N,) each row's advantage at its tokens."""
    return by_row.expand(batch.mask.shape)[batch.mask]


def episodes(batch: Batch) -> Tensor:
    """Each row is an episode."""
    return torch.arange(len(batch.group))


def ours_with_kl(batch: Batch, estimator: Any) -> Tensor:
    """Advantages of one of our components, the KL in the reward."""
    inputs = batch.reward_batch(kl_penalty=-KL_COEF * kl(batch))
    return estimator(inputs).advantages[batch.mask]


def kl(batch: Batch) -> Tensor:
    return batch.old_logprobs - batch.ref_logprobs


def _openrlhf(name: str, ours: str, estimator: Any, *, case: str = "", **options: Any) -> None:
    whitened = name in ("gae", "reinforce", "reinforce_baseline")

    @pair(
        "openrlhf",
        MAKER,
        ours,
        case=f"{name}{case}",
        equal_groups=True,
        float32=WHITENS_IN_FLOAT32 if whitened else "",
    )
    def compare(batch: Batch) -> Both:
        experience = openrlhf_advantages(batch, name, kl=kl(batch), kl_coef=KL_COEF, **options)
        ours = ours_with_kl(batch, estimator)
        return Both(ours=ours, theirs=experience.advantages[batch.mask])


_openrlhf(
    "gae",
    "advantages.gae.GaeEstimator",
    GaeEstimator(GaeConfig(gamma=0.98, lambda_=0.9)),
    gamma=0.98,
    lambda_=0.9,
)
_openrlhf(
    "reinforce",
    "advantages.reinforce.Reinforce",
    Reinforce(ReinforceConfig(gamma=0.9)),
    gamma=0.9,
)
_openrlhf(
    "reinforce",
    "advantages.reinforce.Reinforce",
    Reinforce(ReinforceConfig(whiten="mean")),
    case=", no_std_norm",
    no_std_norm=True,
)
_openrlhf(
    "reinforce_baseline",
    "advantages.reinforce_baseline.ReinforceBaseline",
    ReinforceBaseline(ReinforceBaselineConfig()),
)
_openrlhf("rloo", "advantages.rloo.Rloo", Rloo(Config()))
_openrlhf(
    "flash_reinforce",
    "advantages.flash_reinforce.FlashReinforce",
    FlashReinforce(Config()),
)
_openrlhf("dr_grpo", "advantages.dr_grpo.DrGrpo", DrGrpo(Config()))


@pair(
    "openrlhf",
    MAKER,
    "advantages.group_norm.group_normalized_advantages",
    case="group_norm, eps 1e-9",
    equal_groups=True,
)
def openrlhf_group_norm(batch: Batch) -> Both:
    ours = group_normalized_advantages(
        batch.rewards[:, None], batch.group, episodes(batch), eps=1e-9, correction=1
    )
    theirs = openrlhf_advantages(batch, "group_norm").advantages[batch.mask]
    return Both(ours=at_tokens(batch, ours), theirs=theirs)


@pair(
    "openrlhf",
    "trainer.ppo_utils.experience_maker.get_advantages_and_returns",
    "advantages.gae.gae_advantages",
)
def openrlhf_gae(batch: Batch) -> Both:
    """Advantages and returns, before whitening."""
    maker = load("openrlhf.trainer.ppo_utils.experience_maker").RemoteExperienceMaker
    advantages, returns = maker.get_advantages_and_returns(
        None, batch.values.detach(), batch.token_rewards, batch.float_mask, 0.98, 0.9
    )
    ours = our_gae(batch)
    theirs = torch.stack([advantages[batch.mask], returns[batch.mask]])
    return Both(ours=torch.stack([ours, ours + batch.values.detach()[batch.mask]]), theirs=theirs)


def our_gae(batch: Batch) -> Tensor:
    """At action tokens, with gamma 0.98 and lambda 0.9."""
    advantages = gae_advantages(
        batch.token_rewards, batch.values.detach(), batch.mask, gamma=0.98, lambda_=0.9
    )
    return advantages[batch.mask]


def our_rloo(batch: Batch) -> Tensor:
    """At action tokens."""
    by_row = leave_one_out_advantages(batch.rewards[:, None], batch.group, episodes(batch))
    return at_tokens(batch, by_row)


@pair(
    "trl",
    "trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions",
    "advantages.group_norm.GroupNorm",
    equal_groups=True,
)
def trl_grpo(batch: Batch) -> Both:
    """With the default eps of both, 1e-4."""
    ours = GroupNorm(GroupNormConfig())(batch.reward_batch()).advantages
    theirs = trl_scored(batch)["advantages"]
    return Both(ours=ours[batch.mask], theirs=at_tokens(batch, theirs[:, None]))


@pair(
    "trl",
    "trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions",
    "advantages.dr_grpo.DrGrpo",
    case='scale_rewards="none"',
    equal_groups=True,
)
def trl_dr_grpo(batch: Batch) -> Both:
    ours = DrGrpo(Config())(batch.reward_batch()).advantages
    theirs = trl_scored(batch, scale="none")["advantages"]
    return Both(ours=ours[batch.mask], theirs=at_tokens(batch, theirs[:, None]))


@pair(
    "trl",
    "trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions",
    "advantages.gdpo.decoupled_advantages",
    case='multi_objective_aggregation="normalize_then_sum"',
    equal_groups=True,
)
def trl_gdpo(batch: Batch) -> Both:
    """Theirs then normalizes over the samples of the batch; so does this test."""
    theirs = trl_scored(
        batch,
        rewards=torch.stack([batch.rewards, batch.other_rewards], dim=1),
        weights=torch.tensor([1.0, 0.5], dtype=torch.float64),
        aggregation="normalize_then_sum",
    )["advantages"]
    inputs = batch.reward_batch()
    ours = decoupled_advantages(
        inputs.rewards_by_name, inputs.reward_weights, batch.group, inputs.episode, eps=1e-4
    )
    return Both(ours=(ours - ours.mean()) / (ours.std() + 1e-4), theirs=theirs)


@pair(
    "trl",
    "trainer.rloo_trainer.RLOOTrainer._generate_and_score_completions",
    "advantages.rloo.leave_one_out_advantages",
    equal_groups=True,
)
def trl_rloo(batch: Batch) -> Both:
    theirs = trl_scored(batch, trainer="trl.trainer.rloo_trainer.RLOOTrainer")["advantages"]
    return Both(ours=our_rloo(batch), theirs=at_tokens(batch, theirs[:, None]))
