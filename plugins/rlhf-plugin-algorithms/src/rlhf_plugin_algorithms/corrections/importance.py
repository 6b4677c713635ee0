"""The general importance-sampling correction: weights or masks, by ratio or divergence, at any level.

The other corrections (``tis``, ``icepop``, ``seq_mask_tis``, ``mis``, ``flash_mask``) equal settings of this one. With
``g = log trainer - log sampler`` of a token, a token or a sequence is judged by ``exp(g)``, by the product or the
geometric mean of a sequence's ratios, or by a divergence, and is weighted with a bounded ratio or dropped. With a veto,
a single token that the trainer finds almost impossible drops its whole sequence.

``U`` counts the units of a row that are kept or dropped together: its ``A`` tokens, or the whole row (``U = 1``).

Source: truncation: Yao et al. 2025, https://fengyao.notion.site/off-policy-rl, after Ionides 2008; masks of tokens:
Ling Team 2025 (IcePop), arXiv:2510.18855; masks of sequences: Liu et al. 2025, https://richardli.xyz/rl-collapse;
divergence gates: OpenRLHF 0.11 and verl 0.9; veto: earlier releases of verl, ``rollout_token_veto_threshold``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import Correction
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import MAX_LOG_RATIO, row_mean

from .weighting import (
    CONFLICTS,
    NEEDS,
    ImportanceWeights,
    at_most,
    log_ratios,
    measured,
    probability,
    ratios,
    weighted,
)

Level = Literal["token", "sequence", "geometric"]
Mode = Literal["truncate", "clip", "mask"]
Gate = Literal["ratio", "binary_kl", "tv", "k2", "k3"]
Weight = Literal["token", "sequence", "geometric", "off"]


class ImportanceConfig(Config):
    level: Level = Field(
        "token",
        description="what is judged. token: each token; sequence: each sequence by the product of its ratios or the "
        "sum of its divergences; geometric: by its geometric mean ratio or mean divergence",
    )
    mode: Mode = Field(
        "truncate",
        description="truncate: weights are at most high; clip: weights are between low and high; mask: what is "
        "outside is dropped",
    )
    gate: Gate = Field(
        "ratio",
        description="what low and high bound: the ratio trainer / sampler, or a divergence of the sampled token",
    )
    low: float | None = Field(
        None, ge=1e-6, le=1.0, description="lower bound of the ratio; none: no lower bound"
    )
    high: float = Field(2.0, gt=0.0, le=1e6, description="upper bound of the ratio or divergence")
    weight: Weight | None = Field(
        None,
        description="mode mask: level of the ratio that weights kept tokens; off: no weight; none: token",
    )
    max_weight: float | None = Field(
        None,
        ge=1.0,
        le=1e6,
        description="mode mask: largest weight of a kept token; none: no bound",
    )
    veto: float | None = Field(
        None,
        ge=1e-8,
        lt=1.0,
        description="sequences with a token whose ratio is below this are dropped, in every mode; none: no token does "
        "that. verl's examples have 1e-4",
    )

    @model_validator(mode="after")
    def _refuse_what_means_nothing(self) -> ImportanceConfig:
        problem = (
            self._problem_of_the_mode() if self.mode != "mask" else self._problem_of_the_weight()
        ) or self._problem_of_the_bounds()
        if problem:
            raise ValueError(problem)
        return self

    def _problem_of_the_mode(self) -> str | None:
        if self.gate != "ratio":
            return (
                f"mode {self.mode} bounds a weight, but gate {self.gate} is a divergence, not a weight. "
                "Set mode mask, or gate ratio."
            )
        if self.weight is not None or self.max_weight is not None:
            return (
                f"weight and max_weight are for mode mask; in mode {self.mode} the weight is the ratio of level "
                f"{self.level}, at most high. Leave them out."
            )
        if self.mode == "clip" and self.low is None:
            return "mode clip needs low. Set it, or mode truncate for an upper bound alone."
        if self.mode == "truncate" and self.low is not None:
            return (
                "mode truncate has no lower bound, but low is set. Leave it out, or set mode clip."
            )
        return None

    def _problem_of_the_weight(self) -> str | None:
        if self.weight == "off" and self.max_weight is not None:
            return "max_weight bounds a weight, but weight is off. Leave one of the two out."
        return None

    def _problem_of_the_bounds(self) -> str | None:
        if self.gate == "ratio":
            if self.high < 1.0:
                return (
                    f"high is {self.high:g}: equal log-probs have ratio 1, which must be inside the bounds. "
                    "Set high to at least 1."
                )
            return None
        if self.low is not None:
            return f"gate {self.gate} is 0 for equal log-probs, so it has no lower bound. Leave low out."
        if "high" not in self.model_fields_set:
            return f"gate {self.gate} needs high: its default 2 is for ratios. FlashREINFORCE sets 0.005."
        if self.gate == "tv" and self.level != "sequence" and self.high >= 1.0:
            return f"high is {self.high:g}, but a total variation is below 1: nothing would be dropped."
        return None


def importance_weights(
    old_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    level: str,
    mode: str,
    gate: str,
    high: float,
    low: float | None = None,
    weight: str = "token",
    max_weight: float | None = None,
    veto: float | None = None,
) -> ImportanceWeights:
    """Return the weights that turn an expectation under the sampler into one under the trainer's old policy.

    With ``w`` the ratio at ``level`` (see ``_of_units``) and ``s`` the number that ``gate`` judges by at that level,
    which is w itself for the gate ``ratio`` and else a divergence (see ``_divergence``):

    - mode ``truncate``: weight ``min(w, high)``; mode ``clip``: weight ``clamp(w, low, high)``. All tokens are kept.
    - mode ``mask``: kept where ``low <= s <= high``, with the weight ``min(ratio at level weight, max_weight)``.
    - with ``veto``, in every mode, only rows are kept of which each token has ``exp(g) >= veto``.

    Equal log-probs give weight 1 and keep everything. No gradient flows through the result. NaN at padding has no
    effect. Rows do not depend on each other.

    Args:
        old_logprobs: log-probs of the trainer before its updates.
        rollout_logprobs: log-probs of the sampler.
        level: ``token``, ``sequence`` or ``geometric``.
        mode: ``truncate``, ``clip`` or ``mask``.
        gate: for mode ``mask``: ``ratio``, ``binary_kl``, ``tv``, ``k2`` or ``k3``.
        high: upper bound: of a ratio, at least 1; of a divergence, in nats, or in probability for ``tv``.
        low: lower bound of a ratio, at most 1; None: no lower bound.
        weight: for mode ``mask``: the level of the weight, or ``off`` for weight 1.
        max_weight: for mode ``mask``: upper bound of the weight; None: no bound.
        veto: smallest ratio of a single token that leaves its row in, between 0 and 1; None: any.

    Raises:
        ValueError: the gate is unknown.
    """
    log_ratio = log_ratios(old_logprobs, rollout_logprobs, action_mask)  # (B, A) g
    if mode == "mask":
        if gate == "ratio":
            judged = ratios(_of_units(log_ratio, action_mask, level))  # (B, U) s
        else:
            p, q = probability(rollout_logprobs), probability(old_logprobs)  # (B, A)
            of_tokens = torch.where(action_mask, _divergence(gate, p, q, log_ratio), 0.0)
            judged = _of_units(of_tokens, action_mask, level)
        keep = judged <= high
        if low is not None:
            keep = keep & (judged >= low)
        off = weight == "off"
        raw = torch.ones_like(judged) if off else ratios(_of_units(log_ratio, action_mask, weight))
        bounded = at_most(raw, max_weight)
    else:
        raw = ratios(_of_units(log_ratio, action_mask, level))  # (B, U) w
        keep = torch.ones_like(action_mask)
        bounded = raw.clamp(min=low if mode == "clip" else None, max=high)
    if veto is not None:
        # Padding has the ratio 1 and vetoes nothing.
        keep = keep & (ratios(log_ratio) >= veto).all(dim=1, keepdim=True)
    return weighted(raw, bounded, keep, action_mask, old_logprobs.dtype)


def _of_units(
    of_tokens: Float[torch.Tensor, "b a"], action_mask: Bool[torch.Tensor, "b a"], level: str
) -> Float[torch.Tensor, "b u"]:
    """Return the numbers of tokens for level ``token``, their sum over the row for ``sequence``, and their mean over it
    for ``geometric``: the exponential of a mean of log-ratios is the ratios' geometric mean."""
    match level:
        case "token":
            return of_tokens
        case "sequence":
            return of_tokens.sum(dim=1, keepdim=True)
    assert level == "geometric", level
    return row_mean(of_tokens, action_mask)


def _divergence(
    gate: str,
    p: Float[torch.Tensor, "b a"],
    q: Float[torch.Tensor, "b a"],
    log_ratio: Float[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return a divergence of the trainer's from the sampler's policy at sampled tokens; 0 for equal log-probs, never
    negative.

    - ``binary_kl``: ``p log(p/q) + (1-p) log((1-p)/(1-q))``, the KL of "this token or another".
    - ``tv``: ``abs(p - q)``, the total variation of the same two outcomes.
    - ``k2``: ``g^2 / 2``, and ``k3``: ``exp(g) - 1 - g``: estimates of KL(sampler || trainer); g is clamped to
      [-20, 20].

    Args:
        p: the sampler's probability of each token.
        q: the trainer's.
        log_ratio: g, trainer minus sampler.
    """
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    match gate:
        case "binary_kl":
            return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        case "tv":
            return (p - q).abs()
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.expm1(log_ratio) - log_ratio
    raise ValueError(f"gate {gate!r}: expected 'binary_kl', 'tv', 'k2' or 'k3'")


class Importance:
    """IS correction ``importance``, with every level, mode and gate."""

    def __init__(self, config: ImportanceConfig) -> None:
        self.config = config

    def __call__(
        self,
        old_logprobs: Float[torch.Tensor, "b a"],
        rollout_logprobs: Float[torch.Tensor, "b a"],
        action_mask: Bool[torch.Tensor, "b a"],
    ) -> Correction:
        options = self.config.model_dump() | {"weight": self.config.weight or "token"}
        result = importance_weights(old_logprobs, rollout_logprobs, action_mask, **options)
        return measured(result, action_mask)


COMPONENT = Component(
    name="importance",
    factory=Importance,
    config=ImportanceConfig,
    summary="weights or masks by ratio or divergence, at any level",
    needs=NEEDS,
    conflicts=CONFLICTS,
)
