"""Clip-Cov and KL-Cov: a few tokens whose log-prob and advantage are high together are treated apart, to keep entropy.

The entropy of a softmax policy falls when a likely token becomes likelier because its advantage is high; the covariance
of log-prob and advantage measures that token by token. Clip-Cov takes the gradient from a few tokens
drawn among those of high covariance, KL-Cov holds the highest ones back with a penalty. Both select tokens once per
update, over its whole minibatch, so cutting it into micro-batches has no influence.

Source: Cui et al. 2025, arXiv:2505.22617.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, StepColumns, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import MAX_LOG_RATIO, masked_sum, token_log_ratios, whiten

DETACHED = "detached"
PENALIZED = "penalized"
"""Names of the columns that ``prepare`` of the two losses returns."""


class ClipCovConfig(Config):
    fraction: float = Field(
        2e-4,
        gt=0.0,
        le=1.0,
        description="share of an update's action tokens that get no gradient; at least one token",
    )
    cov_low: float = Field(
        1.0,
        ge=0.0,
        le=1e6,
        description="smallest covariance of tokens that may lose their gradient, in nats times advantage",
    )
    cov_high: float = Field(
        5.0,
        gt=0.0,
        le=1e6,
        description="largest covariance of tokens that may lose their gradient; the few tokens beyond keep it",
    )
    clip_low: float = Field(
        1.0, gt=0.0, le=1.0, description="the ratio counts down to 1 - clip_low; 1: no lower bound"
    )
    clip_high: float = Field(
        1.0, gt=0.0, le=10.0, description="the ratio counts up to 1 + clip_high"
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> ClipCovConfig:
        if self.cov_low >= self.cov_high:
            raise ValueError(
                f"cov_low is {self.cov_low} and cov_high {self.cov_high}; expected cov_low below cov_high, "
                "else no token is ever drawn"
            )
        return self


class KlCovConfig(Config):
    fraction: float = Field(
        2e-3,
        gt=0.0,
        le=1.0,
        description="share of an update's action tokens that are penalized; at least one token",
    )
    kl_coef: float = Field(
        1.0,
        gt=0.0,
        le=100.0,
        description="factor of the penalty, the absolute log-ratio of a penalized token",
    )


def token_covariances(
    advantages: Float[torch.Tensor, "b a"],
    logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return each token's term of the covariance of log-probs and advantages; 0 at padding.

    ``c_t = (A_t - mean(A)) * (logp_t - mean(logp))``, both means over all action tokens. The mean of ``c`` is the
    covariance. Equal advantages, or equal log-probs, give exactly 0. Adding a constant to either changes nothing.

    Args:
        logprobs: nats; those of the policy before the batch's updates, to select once per update, or those of the
            current policy, to compare with code that selects within the loss.

    Source: Cui et al. 2025, arXiv:2505.22617.
    """
    centered_advantages = whiten(advantages, action_mask, divide_by_std=False)
    centered_logprobs = whiten(logprobs, action_mask, divide_by_std=False)
    return centered_advantages * centered_logprobs


def num_selected(fraction: float, action_mask: Bool[torch.Tensor, "b a"]) -> int:
    """Return ``max(1, floor(fraction * tokens))``, and 0 without tokens.

    The minimum of one token is that of the authors' code; in an update of a thousand tokens it is five times Clip-Cov's
    default fraction.
    """
    num_tokens = int(action_mask.sum())
    return max(1, int(fraction * num_tokens)) if num_tokens else 0


def drawn_within(
    covariances: Float[torch.Tensor, "b a"],
    eligible: Bool[torch.Tensor, "b a"],
    *,
    low: float,
    high: float,
    count: int,
    generator: torch.Generator,
) -> Bool[torch.Tensor, "b a"]:
    """Return True at ``count`` tokens drawn uniformly among the eligible with ``low < covariance < high``.

    With fewer candidates than ``count``, all are taken. The draw depends on the generator and on the order of the
    candidates, not on the width of the padding.

    Args:
        eligible: a subset of the action tokens.
        generator: on the CPU, so that every device draws the same.
    """
    candidates = (eligible & (covariances > low) & (covariances < high)).flatten().nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=generator)[:count]
    chosen = torch.zeros(eligible.numel(), dtype=torch.bool, device=eligible.device)
    chosen[candidates[order.to(candidates.device)]] = True
    return chosen.reshape(eligible.shape)


def largest_positive(
    covariances: Float[torch.Tensor, "b a"], eligible: Bool[torch.Tensor, "b a"], *, count: int
) -> Bool[torch.Tensor, "b a"]:
    """Return True at the ``count`` eligible tokens with the largest covariance, as far as it is positive.

    Among equal covariances the first token is taken, in the order of rows and tokens.
    """
    ranked = torch.where(eligible, covariances, -torch.inf).flatten()
    largest = ranked.sort(descending=True, stable=True).indices[:count]
    chosen = torch.zeros_like(ranked, dtype=torch.bool)
    chosen[largest] = True
    return chosen.reshape(eligible.shape) & eligible & (covariances > 0)


class ClipCovResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    clipped_low: Bool[torch.Tensor, "b a"]
    """True where A < 0 and the ratio is below 1 - clip_low."""
    clipped_high: Bool[torch.Tensor, "b a"]
    """True where A > 0 and the ratio is above 1 + clip_high."""


def clip_cov_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    detached: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
) -> ClipCovResult:
    """Return PPO's clipped loss, and 0 with no gradient at the tokens that are ``detached``.

    ``loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`` elsewhere, with
    ``ratio = exp(policy - old)``. Without detached tokens it is PPO's loss; at ratio 1 its gradient is REINFORCE's.

    The log-ratio is clamped to [-20, 20] before the exponential, with no gradient beyond. What stands at padding, nan
    included, has no effect.

    Source: Cui et al. 2025, arXiv:2505.22617 (Clip-Cov).
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    kept = action_mask & ~detached
    ratio = ratio.detach()
    return ClipCovResult(
        loss=torch.where(kept, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        clipped_low=kept & (advantages < 0) & (ratio < 1.0 - clip_low),
        clipped_high=kept & (advantages > 0) & (ratio > 1.0 + clip_high),
    )


class ClipCovLoss:
    """Policy loss ``clip_cov``."""

    def __init__(self, config: ClipCovConfig) -> None:
        self.config = config

    def prepare(self, step: StepColumns) -> Mapping[str, torch.Tensor]:
        """Return 1 at the tokens that get no gradient in this update, 0 elsewhere."""
        mask, config = step.action_mask, self.config
        chosen = drawn_within(
            _covariances(step),
            mask,
            low=config.cov_low,
            high=config.cov_high,
            count=num_selected(config.fraction, mask),
            generator=torch.Generator().manual_seed(step.seed),
        )
        return {DETACHED: chosen.to(step.advantages.dtype)}

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask, config = inputs.action_mask, self.config
        detached = _selected(inputs, DETACHED)
        result = clip_cov_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            detached,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
            "clip/fraction_cov": Metric(detached.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


class KlCovResult(NamedTuple):
    """Per token; all zero at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    abs_log_ratio: Float[torch.Tensor, "b a"]
    """``abs(policy - old)``, not clamped."""


def kl_cov_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    penalized: Bool[torch.Tensor, "b a"],
    *,
    kl_coef: float,
) -> KlCovResult:
    """Return ``-ratio * A``, plus ``kl_coef * |policy - old|`` at the tokens that are ``penalized``.

    The ratio is not clipped. At ratio 1 the penalty and its gradient are 0 and the rest is REINFORCE: the penalty
    acts from the second update of a batch on, as a constant pull of ``kl_coef`` toward the old log-prob.

    The log-ratio is clamped to [-20, 20] before the exponential, with no gradient beyond; the penalty is not clamped,
    so that it still pulls there. What stands at padding, nan included, has no effect.

    Source: Cui et al. 2025, arXiv:2505.22617 (KL-Cov). The paper writes a KL divergence; its authors' code
    takes the absolute log-ratio of the sampled token, as does this function.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    # The log-ratio is not clamped yet: the penalty still pulls where the ratio no longer does. Padding is replaced
    # before the arithmetic: a nan there would come back in the backward pass as 0 * nan.
    log_ratio = torch.where(action_mask, policy_logprobs - old_logprobs, 0.0)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    penalty = torch.where(penalized & action_mask, kl_coef * log_ratio.abs(), 0.0)
    return KlCovResult(
        loss=penalty - ratio * advantages,
        ratio=torch.where(action_mask, ratio.detach(), 0.0),
        abs_log_ratio=log_ratio.detach().abs(),
    )


class KlCovLoss:
    """Policy loss ``kl_cov``."""

    def __init__(self, config: KlCovConfig) -> None:
        self.config = config

    def prepare(self, step: StepColumns) -> Mapping[str, torch.Tensor]:
        """Return 1 at the tokens that are penalized in this update, 0 elsewhere."""
        count = num_selected(self.config.fraction, step.action_mask)
        chosen = largest_positive(_covariances(step), step.action_mask, count=count)
        return {PENALIZED: chosen.to(step.advantages.dtype)}

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        penalized = _selected(inputs, PENALIZED)
        result = kl_cov_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            penalized,
            kl_coef=self.config.kl_coef,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "kl_cov/fraction": Metric(penalized.sum(), count),
            "kl_cov/abs_log_ratio": Metric(
                masked_sum(result.abs_log_ratio, penalized), penalized.sum()
            ),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


def _covariances(step: StepColumns) -> torch.Tensor:
    assert step.old_logprobs is not None, "registered with needs={'old_logprobs'}"
    return token_covariances(step.advantages, step.old_logprobs, step.action_mask)


def _selected(inputs: LossInputs, name: str) -> torch.Tensor:
    """Return True where the prepared column is 1; False at padding, whatever stands there."""
    assert name in inputs.prepared, "registered with provides={'prepares_step'}"
    return (inputs.prepared[name] > 0.5) & inputs.action_mask


CLIP_COV = Component(
    name="clip_cov",
    factory=ClipCovLoss,
    config=ClipCovConfig,
    summary="clipped ratio, no gradient at a few tokens of high covariance, to keep entropy (Clip-Cov)",
    needs=frozenset({"old_logprobs"}),
    provides=frozenset({"prepares_step", "aggregation:token-mean", "off_policy"}),
)

KL_COV = Component(
    name="kl_cov",
    factory=KlCovLoss,
    config=KlCovConfig,
    summary="ratio with a KL penalty at the tokens of the highest covariance, to keep entropy (KL-Cov)",
    needs=frozenset({"old_logprobs"}),
    provides=frozenset({"prepares_step", "aggregation:token-mean", "off_policy"}),
)
