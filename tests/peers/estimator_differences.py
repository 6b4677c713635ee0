"""Intended differences in rewards, whitening and advantages."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rlhf_core import Config
from rlhf_plugin_algorithms.advantages.dr_grpo import DrGrpo
from rlhf_plugin_algorithms.advantages.gae import GaeConfig, GaeEstimator, gae_advantages
from rlhf_plugin_algorithms.advantages.gdpo import Gdpo, GdpoConfig
from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig
from rlhf_plugin_algorithms.advantages.reinforce import Reinforce, ReinforceConfig
from rlhf_plugin_algorithms.advantages.reinforce_baseline import (
    ReinforceBaseline,
    ReinforceBaselineConfig,
)
from rlhf_plugin_algorithms.advantages.rloo import Rloo
from rlhf_plugin_algorithms.shapers.clip import Clip, ClipConfig
from rlhf_plugin_algorithms.shapers.overlong import overlong_penalty

from .batches import Batch, equal_groups, ragged
from .differences import difference
from .estimator_pairs import KL_COEF, MAKER, at_tokens, kl
from .pairs import FLOAT32, Both
from .released import load
from .shaping_pairs import INFO, as_columns
from .stand_ins import openrlhf_advantages, trl_scored, verl_dapo_rewards, verl_index
from .verl_estimator_pairs import our_optimal_token_baseline

VERL = "trainer.ppo.core_algos"


@difference(
    "openrlhf",
    "trainer.ppo_utils.experience_maker.get_advantages_and_returns",
    "advantages.gae.gae_advantages",
    what="Environment tokens between two actions take no time; theirs decay the advantage by gamma lambda each "
    "and count "
    "as states of value 0.",
    why="The environment's text is not a step of the policy. They agree where gamma lambda is 1.",
)
def environment_tokens(agreeing: bool) -> Both:
    """Two actions with one environment token between them."""
    lambda_ = 1.0 if agreeing else 0.95
    values, rewards = (
        torch.tensor([[0.5, 9.0, 0.3]]).double(),
        torch.tensor([[0.0, 0.0, 1.0]]).double(),
    )
    mask, actions = torch.tensor([[1.0, 0.0, 1.0]]).double(), torch.tensor([0, 2])
    maker = load("openrlhf.trainer.ppo_utils.experience_maker").RemoteExperienceMaker
    theirs, _ = maker.get_advantages_and_returns(None, values, rewards, mask, 1.0, lambda_)
    ours = gae_advantages(
        rewards[:, actions],
        values[:, actions],
        torch.ones(1, 2, dtype=torch.bool),
        gamma=1.0,
        lambda_=lambda_,
    )
    return Both(ours=ours, theirs=theirs[:, actions])


@difference(
    "openrlhf",
    MAKER,
    "advantages.group_norm.GroupNorm",
    what="Equal rewards of a group that are not exact in binary, such as 0.1, give 0; theirs, in float32 with "
    "eps 1e-9, "
    "divide rounding noise by itself and give advantages near 1.",
    why="A group without a signal must not train. They agree, up to eps, where rewards differ.",
    tolerance=1e-3,
)
def equal_rewards(agreeing: bool) -> Both:
    batch = equal_groups(0)
    rewards = batch.rewards if agreeing else torch.full_like(batch.rewards, 0.3)
    if not agreeing:  # seven times 0.3, in float32, as rewards arrive
        batch = ragged(0, group_sizes=(7, 7), shuffle=False)
        rewards = torch.full((14,), 0.3)
    batch = replace(batch, rewards=rewards)
    theirs = openrlhf_advantages(batch, "group_norm").advantages[batch.mask]
    return Both(ours=_advantages(batch, GroupNorm(GroupNormConfig())), theirs=theirs)


@difference(
    "openrlhf",
    MAKER,
    "shapers.clip.Clip",
    what="A reward is clipped before the baseline is subtracted; theirs clips what is left of it after.",
    why="A bound on rewards is stated in units of the reward. They agree where nothing is clipped.",
    tolerance=FLOAT32,
)
def clipped_rewards(agreeing: bool) -> Both:
    """In RLOO. Our rewards are float32."""
    bound = 100.0 if agreeing else 0.5
    batch = equal_groups(0)
    theirs = openrlhf_advantages(batch, "rloo", clip_range=(-bound, bound)).advantages[batch.mask]
    shaped, _ = Clip(ClipConfig(low=-bound, high=bound)).shape(as_columns(batch), INFO)
    clipped = replace(batch, rewards=torch.from_numpy(shaped.reward))
    return Both(ours=_advantages(clipped, Rloo(Config())), theirs=theirs)


def _whitening(function: str, estimator: object) -> None:
    @difference(
        "verl",
        f"{VERL}.{function}",
        f"{type(estimator).__module__.removeprefix('rlhf_plugin_')}.{type(estimator).__name__}",
        what="Whitening divides by the population's standard deviation (as OpenRLHF), theirs by the sample's: over N "
        "tokens the two differ by the factor sqrt(1 - 1 / N).",
        why="The batch is all there is, not a sample of it. They agree with that factor.",
    )
    def compute(agreeing: bool) -> Both:
        batch = ragged(1)
        theirs = _verl_whitened(batch, function)[batch.mask]
        num_tokens = int(batch.mask.sum())
        factor = math.sqrt(1 - 1 / num_tokens) if agreeing else 1.0
        return Both(ours=_advantages(batch, estimator) * factor, theirs=theirs)


def _verl_whitened(batch: Batch, function: str) -> Tensor:
    core_algos = load("verl.trainer.ppo.core_algos")
    rewards, mask = batch.outcome_rewards, batch.float_mask
    if function == "compute_gae_advantage_return":
        return core_algos.compute_gae_advantage_return(
            rewards, batch.values.detach(), mask, 1.0, 0.95
        )[0]
    config = load("verl.trainer.config").AlgoConfig(gamma=0.9)
    named = {} if function.endswith("plus_plus_outcome_advantage") else {"index": verl_index(batch)}
    return getattr(core_algos, function)(rewards, mask, config=config, **named)[0]


_whitening("compute_gae_advantage_return", GaeEstimator(GaeConfig()))
_whitening("compute_reinforce_plus_plus_outcome_advantage", Reinforce(ReinforceConfig(gamma=0.9)))
_whitening(
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    ReinforceBaseline(ReinforceBaselineConfig()),
)


def _alone(function: str, estimator: object) -> None:
    @difference(
        "verl",
        f"{VERL}.{function}",
        f"{type(estimator).__module__.removeprefix('rlhf_plugin_')}.{type(estimator).__name__}",
        what="A group of one has the advantage 0; theirs keeps the reward itself.",
        why="Without others there is no baseline, and a raw reward among centered ones dominates the step. They "
        "agree on "
        "larger groups.",
        tolerance=1e-4,
    )
    def compute(agreeing: bool) -> Both:
        batch = ragged(2, group_sizes=(3, 4) if agreeing else (1, 3))
        core_algos = load("verl.trainer.ppo.core_algos")
        options = {"norm_adv_by_std_in_grpo": isinstance(estimator, GroupNorm)}
        theirs, _ = getattr(core_algos, function)(
            batch.outcome_rewards,
            batch.float_mask,
            verl_index(batch),
            **(options if "grpo" in function else {}),
        )
        return Both(ours=_advantages(batch, estimator), theirs=theirs[batch.mask])


_alone("compute_grpo_outcome_advantage", GroupNorm(GroupNormConfig(eps=1e-6)))
_alone("compute_rloo_outcome_advantage", Rloo(Config()))


def _kl_in_the_baseline(function: str, estimator: object) -> None:
    @difference(
        "verl",
        f"{VERL}.{function}",
        f"{type(estimator).__module__.removeprefix('rlhf_plugin_')}.{type(estimator).__name__}",
        what="A KL penalty in the reward is charged to the token that has it and to those before it, after the "
        "baseline "
        "(as OpenRLHF); theirs is part of the group's scores.",
        why="Each token pays for its own divergence only. They agree without a KL in the reward.",
    )
    def compute(agreeing: bool) -> Both:
        batch = ragged(3)
        penalty = torch.zeros_like(batch.old_logprobs) if agreeing else -KL_COEF * kl(batch)
        core_algos = load("verl.trainer.ppo.core_algos")
        options = {"norm_adv_by_std_in_grpo": False} if "grpo" in function else {}
        theirs, _ = getattr(core_algos, function)(
            batch.outcome_rewards + penalty, batch.float_mask, verl_index(batch), **options
        )
        ours = estimator(batch.reward_batch(kl_penalty=penalty)).advantages
        return Both(ours=ours[batch.mask], theirs=theirs[batch.mask])


_kl_in_the_baseline("compute_grpo_outcome_advantage", DrGrpo(Config()))
_kl_in_the_baseline("compute_rloo_outcome_advantage", Rloo(Config()))


def _advantages(batch: Batch, estimator: object) -> Tensor:
    advantages = estimator(batch.reward_batch()).advantages
    return advantages[batch.mask].double()


@difference(
    "verl",
    f"{VERL}.compute_gdpo_outcome_advantage",
    "advantages.gdpo.Gdpo",
    what="Whitening divides by the population's standard deviation, theirs by the sample's.",
    why="The batch is all there is, not a sample of it. They agree with the factor sqrt(1 - 1 / N).",
    tolerance=FLOAT32,
)
def verl_gdpo(agreeing: bool) -> Both:
    """Theirs computes in float32. Two rewards, the second of weight 0.5."""
    batch = ragged(4)
    config = {"gdpo_reward_keys": ["first", "second"], "gdpo_reward_weights": [1.0, 0.5]}
    named = {"first": batch.rewards.numpy(), "second": batch.other_rewards.numpy()}
    prompt = torch.ones(len(batch.mask), 1)
    theirs, _ = load("verl.trainer.ppo.core_algos").compute_gdpo_outcome_advantage(
        batch.outcome_rewards,
        batch.float_mask,
        verl_index(batch),
        config=config,
        non_tensor_batch=named,
        batch={"prompts": prompt, "attention_mask": torch.cat([prompt, batch.mask], dim=1).long()},
    )
    factor = math.sqrt(1 - 1 / int(batch.mask.sum())) if agreeing else 1.0
    ours = _advantages(batch, Gdpo(GdpoConfig(eps=1e-6)))
    return Both(ours=ours * factor, theirs=theirs[batch.mask])


@difference(
    "trl",
    "trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions",
    "advantages.gdpo.Gdpo",
    what="The sum of normalized rewards is whitened over tokens (as verl); theirs over samples, with n - 1.",
    why="Tokens are what the loss is made of. They agree for samples of one length, with the factor sqrt(1 - 1 / n).",
    tolerance=1e-3,
)
def trl_gdpo(agreeing: bool) -> Both:
    batch = equal_groups(0, one_length=agreeing)
    theirs = trl_scored(
        batch,
        rewards=torch.stack([batch.rewards, batch.other_rewards], dim=1),
        weights=torch.tensor([1.0, 0.5], dtype=torch.float64),
        aggregation="normalize_then_sum",
    )["advantages"]
    num_samples = len(batch.mask)
    factor = math.sqrt(1 - 1 / num_samples) if agreeing else 1.0
    ours = _advantages(batch, Gdpo(GdpoConfig()))
    return Both(ours=ours * factor, theirs=at_tokens(batch, theirs[:, None]))


@difference(
    "verl",
    f"{VERL}.compute_optimal_token_baseline_advantage",
    "advantages.optimal_token_baseline.OptimalTokenBaseline",
    what="Where one sample of a group is left, the last baseline that two samples gave stays in force (tail "
    "carry, the "
    "default); theirs falls to 0 there.",
    why="The end of a long answer would get its raw reward. They agree where the two longest are equally long.",
)
def tail_of_the_longest(agreeing: bool) -> Both:
    return _optimal_token_baseline(ragged(5, one_length=agreeing))


@difference(
    "verl",
    f"{VERL}.compute_optimal_token_baseline_advantage",
    "advantages.optimal_token_baseline.OptimalTokenBaseline",
    what="A group of one has the advantage 0; theirs keeps the reward itself.",
    why="Without others there is no baseline. They agree on larger groups.",
)
def optimal_token_baseline_alone(agreeing: bool) -> Both:
    sizes = (3, 4) if agreeing else (1, 4)
    return _optimal_token_baseline(ragged(6, group_sizes=sizes, one_length=True))


def _optimal_token_baseline(batch: Batch) -> Both:
    theirs, _ = load("verl.trainer.ppo.core_algos").compute_optimal_token_baseline_advantage(
        batch.outcome_rewards,
        batch.float_mask,
        verl_index(batch),
        batch.old_logprobs,
        batch.sum_pi_squared,
    )
    ours = our_optimal_token_baseline(batch, "carry")
    return Both(ours=ours, theirs=theirs[batch.mask])


@difference(
    "verl",
    "workers.reward_manager.dapo.DAPORewardManager.__call__",
    "shapers.overlong.overlong_penalty",
    what="The penalty of a long response stops growing at the limit (as in the paper); theirs does not.",
    why="An episode of several turns can be longer. They agree up to the limit.",
    tolerance=FLOAT32,
)
def beyond_the_limit(agreeing: bool) -> Both:
    """Of responses of up to 9 tokens, with a buffer of 4."""
    limit, lengths = 9 if agreeing else 6, torch.arange(1, 10)
    theirs = -verl_dapo_rewards(lengths.tolist(), limit=limit, buffer=4)
    ours = overlong_penalty(lengths.numpy(), limit=limit, buffer=4, factor=1.0)
    return Both(ours=torch.from_numpy(ours), theirs=theirs)
