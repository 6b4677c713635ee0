"""What happens to rewards before the estimator sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from rlhf_core.contracts import RolloutInfo, TokenColumns, TrajectoryColumns
from rlhf_plugin_algorithms.filters.dynamic_sampling import DynamicSampling, DynamicSamplingConfig
from rlhf_plugin_algorithms.shapers.clip import Clip, ClipConfig
from rlhf_plugin_algorithms.shapers.overlong import overlong_penalty
from rlhf_plugin_algorithms.shapers.stop_properly import stop_properly_reward

from .batches import Batch
from .pairs import Both, pair
from .released import load

PENALTY = {"limit": 8, "buffer": 4, "factor": 0.7}
INFO = RolloutInfo(step=1, version=0, max_new_tokens=8, max_length=16)


def _penalized(batch: Batch, factor: float) -> Tensor:
    penalty = overlong_penalty(batch.lengths.numpy(), **(PENALTY | {"factor": factor}))
    return -torch.from_numpy(penalty)


@pair(
    "openrlhf",
    "trainer.ppo_utils.length_penalty.apply_overlong_penalty",
    "shapers.overlong.overlong_penalty",
)
def openrlhf_overlong(batch: Batch) -> Both:
    experience = SimpleNamespace(
        response_length=batch.lengths, rewards=torch.zeros(len(batch.lengths)).double()
    )
    load("openrlhf.trainer.ppo_utils.length_penalty").apply_overlong_penalty(
        [experience], PENALTY["limit"], PENALTY["buffer"], PENALTY["factor"]
    )
    return Both(ours=_penalized(batch, PENALTY["factor"]), theirs=experience.rewards)


@pair(
    "trl",
    "rewards.other_rewards.get_soft_overlong_punishment",
    "shapers.overlong.overlong_penalty",
)
def trl_overlong(batch: Batch) -> Both:
    punish = load("trl.rewards.other_rewards").get_soft_overlong_punishment(
        PENALTY["limit"], PENALTY["buffer"]
    )
    theirs = punish([[0] * length for length in batch.lengths.tolist()])
    return Both(ours=_penalized(batch, 1.0), theirs=torch.tensor(theirs, dtype=torch.float64))


def _openrlhf_stop_properly(coef: float) -> None:
    @pair(
        "openrlhf",
        "trainer.ppo_utils.length_penalty.apply_stop_properly_penalty",
        "shapers.stop_properly.stop_properly_reward",
        case=f"coef {coef}",
    )
    def compare(batch: Batch) -> Both:
        truncated = batch.lengths > 4
        experience = SimpleNamespace(truncated=truncated, rewards=batch.rewards.clone())
        load("openrlhf.trainer.ppo_utils.length_penalty").apply_stop_properly_penalty(
            [experience], coef
        )
        ours = stop_properly_reward(batch.rewards.numpy(), truncated.numpy(), coef=coef)
        return Both(ours=torch.from_numpy(ours), theirs=experience.rewards)


for _coef in (0.3, -0.5):
    _openrlhf_stop_properly(_coef)


@pair(
    "openrlhf",
    "models.utils.compute_reward",
    "shapers.clip.Clip",
    case="reward_clip_range, no KL",
    float32="ours: rewards are float32",
)
def openrlhf_clip(batch: Batch) -> Both:
    """Theirs lays the reward on the last token; the sum of a row is the reward."""
    theirs = load("openrlhf.models.utils").compute_reward(
        batch.rewards, 0.0, torch.zeros_like(batch.returns), batch.float_mask, (-0.5, 0.8)
    )
    shaped, _ = Clip(ClipConfig(low=-0.5, high=0.8)).shape(as_columns(batch), INFO)
    return Both(ours=torch.from_numpy(shaped.reward).double(), theirs=theirs.sum(dim=1))


@pair(
    "openrlhf",
    "trainer.ppo_utils.samples_generator.SamplesGenerator._generate_vllm",
    "filters.dynamic_sampling.DynamicSampling",
)
def openrlhf_dynamic_filtering(batch: Batch) -> Both:
    """Which groups are kept. Theirs draws them from engines; here from a list, with nothing to replace them."""
    low, high = -0.3, 0.5
    groups = [batch.rewards[batch.group == g] for g in range(int(batch.group.max()) + 1)]
    accepted = _accepted([group.float() for group in groups], low, high)
    keep = DynamicSampling(DynamicSamplingConfig(low=low, high=high)).keep
    ours = [keep(as_columns(batch, batch.group == g), INFO) is None for g in range(len(groups))]
    return Both(
        ours=_weighted(batch, ours),
        theirs=_weighted(batch, [g in accepted for g in range(len(groups))]),
    )


def _weighted(batch: Batch, kept: list[bool]) -> Tensor:
    """The rewards of what was kept, so that the result depends on the batch whatever is kept."""
    return torch.where(torch.tensor(kept)[batch.group], batch.rewards, 0.0)


def _accepted(groups: list[Tensor], low: float, high: float) -> set[int]:
    """The groups that OpenRLHF's loop over finished prompts accepts."""
    module = load("openrlhf.trainer.ppo_utils.samples_generator")
    experiences = [
        [SimpleNamespace(scores=score[None], group=g) for score in scores]
        for g, scores in enumerate(groups)
    ]
    generator = SimpleNamespace(
        args=SimpleNamespace(
            algo=SimpleNamespace(dynamic_filtering_range=(low, high)),
        ),
        _dispatch_prompts_to_vllm=lambda prompts, labels, **_: list(range(len(prompts))),
        _process_response_into_experience=lambda response, **_: response,
    )
    ray = SimpleNamespace(
        wait=lambda refs, **_: (refs[:1], refs[1:]), get=lambda ref: experiences[ref]
    )
    with patch.object(module, "ray", ray), patch.object(module, "tqdm", _silent):
        accepted, _, _ = module.SamplesGenerator._generate_vllm(
            generator, _prompts(len(groups)), len(groups), dynamic_filtering=True
        )
    return {experience.group for experience in accepted}


def _prompts(count: int) -> Iterator[Any]:
    """What OpenRLHF's loader of prompts yields: lists of sources, prompts, labels and images."""
    return iter([(["source"], [str(number)], [""], [None]) for number in range(count)])


def _silent(*_: Any, **__: Any) -> Any:
    return SimpleNamespace(set_postfix=lambda _: None, update=lambda: None)


def as_columns(batch: Batch, rows: Tensor | None = None) -> TrajectoryColumns:
    """Return (some of) the batch's rows as our shapers and filters see them, in float32."""
    rows = torch.ones(len(batch.group), dtype=torch.bool) if rows is None else rows
    lengths, group = batch.lengths[rows].numpy(), batch.group[rows].numpy()
    offsets, total = np.concatenate([[0], lengths.cumsum()]), int(lengths.sum())
    sample = np.arange(len(group))
    return TrajectoryColumns.from_tokens(
        TokenColumns(
            token_ids=np.zeros(total, dtype=np.int32),
            action_mask=np.ones(total, dtype=np.bool_),
            token_offsets=offsets,
            rollout_logprobs=np.full(total, math.log(0.5), dtype=np.float32),
            weight_version=np.zeros(total, dtype=np.int32),
            action_offsets=offsets,
        ),
        uid=np.stack([0 * sample, group, sample, 0 * sample], axis=1),
        num_turns=np.ones(len(group), dtype=np.int64),
        turn_actions=lengths,
        turn_rewards=np.zeros(len(group), dtype=np.float32),
        reward=batch.rewards[rows].numpy().astype(np.float32),
        truncated=np.zeros(len(group), dtype=np.bool_),
    )
