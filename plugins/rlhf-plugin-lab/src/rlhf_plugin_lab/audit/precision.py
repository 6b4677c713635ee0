"""Gaps that a dtype explains, and actions that its rounding makes undecided."""

from __future__ import annotations

from dataclasses import replace

from rlhf_core import ConfigError
from rlhf_core.lazy import np, torch

from .case import Case
from .changed import with_dtype
from .forward import logprobs_of

FLOAT32, BFLOAT16 = "float32", "bfloat16"
DTYPES = (FLOAT32, BFLOAT16)
PRECISION = 1e-4
"""Mean gap in nats that two computations in float32 may have; tiny models have 1e-7 to 1e-6, deep ones more."""
_MARGIN = 3.0
"""Gap in bfloat16, as a multiple of the one of a bfloat16 forward: another kernel rounds otherwise."""
_EDGE = 0.01
"""Relative change of a bound of probability that bfloat16 may make."""
_UNDECIDED = 0.02
"""Nats by which that changes the log-prob of an action that is left out."""


def allowed_of(case: Case, dtype: str) -> float:
    """Return the gap that a dtype explains: in bfloat16 a multiple of that of a plain forward in it."""
    if dtype == FLOAT32:
        return PRECISION
    low = replace(case.plain, model=with_dtype(case.plain.model, torch.bfloat16))
    gaps = [
        np.abs(logprobs_of(low, each) - logprobs_of(case.plain, each))[each.action_mask]
        for each in case.sequences
    ]
    return max(PRECISION, _MARGIN * float(np.mean(np.concatenate(gaps))))


def without_edges(side: str, case: Case) -> Case:
    """Return a case without the actions at which rounding decides which tokens top-p and min-p keep.

    Raises:
        ConfigError: no action is left.
    """
    plain = replace(case.plain, soft_edges=True)
    near = [
        replace(plain, top_p=min(1.0, plain.top_p * factor), min_p=plain.min_p * factor)
        for factor in (1.0 - _EDGE, 1.0 + _EDGE)
        if plain.top_p < 1.0 or plain.min_p > 0.0
    ]
    kept = []
    for each in case.sequences:
        own, others = logprobs_of(plain, each), [logprobs_of(other, each) for other in near]
        sure = np.all([np.abs(own - other) <= _UNDECIDED for other in others], axis=0) | (not near)
        logprobs = {**each.logprobs, side: np.where(sure, each.logprobs[side], np.nan)}
        if np.isfinite(logprobs[side]).any():
            kept.append(replace(each, logprobs=logprobs))
    if not kept:
        raise ConfigError(
            "rlhf audit: each action is at the edge of top-p or min-p, which bfloat16 rounds; record more tokens, or a "
            "step without them",
            code="lab/too-few-tokens",
        )
    return replace(case, plain=plain, sequences=kept)
