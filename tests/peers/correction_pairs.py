"""Importance-sampling corrections between sampler and trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_plugin_algorithms.corrections.importance import importance_weights
from rlhf_plugin_algorithms.corrections.weighting import ImportanceWeights
from rlhf_plugin_algorithms.losses.ppo import clipped_policy_loss

from .batches import Batch
from .core_pairs import step_mean
from .pairs import Both, pair
from .policy_loss_pairs import OPENRLHF_LOSS, TO_POLICY, openrlhf_loss, our_inputs
from .released import load
from .stand_ins import trl_scored

OURS = "corrections.importance.importance_weights"
VERL = "trainer.ppo.rollout_corr_helper"
TRL = "trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions"


def ours(
    batch: Batch,
    level: str,
    mode: str,
    *,
    gate: str = "ratio",
    low: float | None = None,
    high: float,
    weight: str = "token",
) -> ImportanceWeights:
    """Our correction, with every option said."""
    return importance_weights(
        batch.old_logprobs,
        batch.rollout_logprobs,
        batch.mask,
        level=level,
        mode=mode,
        gate=gate,
        low=low,
        high=high,
        weight=weight,
        max_weight=None,
    )


def kept_weights(result: ImportanceWeights) -> Tensor:
    """(B, A) 0 where a token is dropped."""
    return torch.where(result.keep, result.weights, 0.0)


def _openrlhf(case: str, theirs: dict[str, Any], **our_options: Any) -> None:
    @pair("openrlhf", OPENRLHF_LOSS, OURS, case=f"ppo, {case}", gradient=TO_POLICY)
    def compare(batch: Batch) -> Both:
        """Within the loss: dropped tokens stay in the denominator."""
        options = {f"is_correction_{key}": value for key, value in theirs.items()}
        loss = clipped_policy_loss(*our_inputs(batch), clip_low=0.2, clip_high=0.2).loss
        corrected = loss * kept_weights(ours(batch, **our_options))
        return Both(ours=step_mean(batch, corrected), theirs=openrlhf_loss(batch, **options))


def _openrlhf_options(
    level: str, mode: str, gating: str, low: float, high: float
) -> dict[str, Any]:
    return {"level": level, "mode": mode, "gating": gating, "threshold": [low, high]}


_openrlhf(
    "tis: token, clip",
    _openrlhf_options("token", "clip", "ratio", 0.7, 1.3),
    level="token", mode="clip", low=0.7, high=1.3,
)  # fmt: skip
_openrlhf(
    "icepop: token, mask",
    _openrlhf_options("token", "mask", "ratio", 0.7, 1.3),
    level="token", mode="mask", low=0.7, high=1.3,
)  # fmt: skip
_openrlhf(
    "seq-mask-tis: seq, mask",
    _openrlhf_options("seq", "mask", "ratio", 0.9, 1.1),
    level="geometric", mode="mask", low=0.9, high=1.1,
)  # fmt: skip
for _gate, _token_bound, _sequence_bound in (("binary_kl", 0.02, 0.05), ("tv", 0.1, 0.12)):
    _openrlhf(
        f"{_gate}: token",
        _openrlhf_options("token", "mask", _gate, 0.0, _token_bound),
        level="token", mode="mask", gate=_gate, high=_token_bound,
    )  # fmt: skip
    _openrlhf(
        f"{_gate}: seq",
        _openrlhf_options("seq", "mask", _gate, 0.0, _sequence_bound),
        level="geometric", mode="mask", gate=_gate, high=_sequence_bound,
    )  # fmt: skip


def _log_ratio(batch: Batch) -> Tensor:
    return batch.old_logprobs - batch.rollout_logprobs


def _verl_weights(level: str, threshold: float | str, **our_options: Any) -> None:
    case = f"{level}, {threshold}"

    @pair("verl", f"{VERL}.compute_rollout_correction_weights", OURS, case=case)
    def compare(batch: Batch) -> Both:
        theirs, _ = load(f"verl.{VERL}").compute_rollout_correction_weights(
            _log_ratio(batch), batch.float_mask, rollout_is=level, rollout_is_threshold=threshold
        )
        result = ours(batch, level, **our_options)
        return Both(ours=kept_weights(result), theirs=theirs)


_verl_weights("token", 1.2, mode="truncate", high=1.2)
_verl_weights("token", "0.7_1.3", mode="mask", low=0.7, high=1.3)
_verl_weights("sequence", 1.2, mode="truncate", high=1.2)
_verl_weights("sequence", "0.5_2.0", mode="mask", low=0.5, high=2.0, weight="sequence")


def _verl_rejection(option: str, threshold: str, **our_options: Any) -> None:
    @pair("verl", f"{VERL}.compute_rollout_rejection_mask", OURS, case=option)
    def compare(batch: Batch) -> Both:
        theirs, _ = load(f"verl.{VERL}").compute_rollout_rejection_mask(
            _log_ratio(batch), batch.float_mask, option, threshold
        )
        return Both(ours=ours(batch, mode="mask", **our_options).keep.double(), theirs=theirs)


# Its k1 is the negative log-ratio: a band of [lower, upper] for 1 / w.
_verl_rejection("token_k1", "0.8_1.4", level="token", low=1 / 1.4, high=1 / 0.8)
_verl_rejection("seq_sum_k1", "0.5_2.5", level="sequence", low=1 / 2.5, high=1 / 0.5)
_verl_rejection("seq_mean_k1", "0.9_1.2", level="geometric", low=1 / 1.2, high=1 / 0.9)
for _k in ("k2", "k3"):
    _verl_rejection(f"token_{_k}", "0.03", level="token", gate=_k, high=0.03)
    _verl_rejection(f"seq_sum_{_k}", "0.2", level="sequence", gate=_k, high=0.2)
    _verl_rejection(f"seq_mean_{_k}", "0.04", level="geometric", gate=_k, high=0.04)


def _trl(case: str, low: float | None, high: float, **our_options: Any) -> None:
    @pair("trl", TRL, OURS, case=case, equal_groups=True)
    def compare(batch: Batch) -> Both:
        theirs = trl_scored(batch, is_mode=case, is_clip=(low, high))["importance_sampling_ratio"]
        theirs = theirs.expand(batch.mask.shape)[batch.mask]
        result = kept_weights(ours(batch, low=low, high=high, **our_options))
        return Both(ours=result[batch.mask], theirs=theirs)


_trl("token_truncate", None, 1.2, level="token", mode="truncate")
_trl("token_mask", 0.7, 1.3, level="token", mode="mask")
_trl("sequence_truncate", 0.5, 1.5, level="sequence", mode="clip")
_trl("sequence_mask", None, 1.5, level="sequence", mode="mask", weight="sequence")
