"""Half the squared log-ratio: biased, of small variance. As a loss its gradient is that of the KL itself."""

from __future__ import annotations

import math

from rlhf_core import Component, Config
from rlhf_core.lazy import Float, torch
from rlhf_core.math import MAX_KL_ESTIMATE

EDGE = math.sqrt(2 * MAX_KL_ESTIMATE)
"""Size of the log-ratio, in nats, at which the estimate is 10, on either side."""


def k2(log_ratio: Float[torch.Tensor, "*n"]) -> Float[torch.Tensor, "*n"]:
    """Return ``l^2 / 2``; beyond 10 nats its tangent takes over, so that a far token is pulled back by 4.5 and no more.

    For close policies its mean is the KL: it is the second order of it.

    Source: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html. The tangents are ours,
    after Huber's loss.
    """
    # Bounded before the square: an infinite square would come back in the backward pass as 0 * inf.
    inner = log_ratio.clamp(-EDGE, EDGE).square() / 2
    tangent = MAX_KL_ESTIMATE + EDGE * (log_ratio.abs() - EDGE)
    return torch.where(log_ratio.abs() > EDGE, tangent, inner)


class K2:
    """See ``k2``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, log_ratio: torch.Tensor) -> torch.Tensor:
        return k2(log_ratio)


COMPONENT = Component(
    name="k2",
    factory=K2,
    summary="l^2 / 2 of the log-ratio l: biased, small variance; as a loss it has the gradient of the KL",
)
