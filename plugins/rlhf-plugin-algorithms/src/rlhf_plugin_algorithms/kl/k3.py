"""``exp(-l) - 1 + l``: unbiased and never negative. Common as a loss with GRPO, where its gradient is biased."""

from __future__ import annotations

import math

from rlhf_core import Component, Config
from rlhf_core.capabilities import UNBIASED_KL
from rlhf_core.lazy import Float, torch
from rlhf_core.math import MAX_KL_ESTIMATE

EDGE = 2.610868638149876
"""Root of ``exp(x) - 1 - x = 10``: the estimate is 10 at the log-ratio ``-EDGE``, in nats."""


def k3(log_ratio: Float[torch.Tensor, "*n"]) -> Float[torch.Tensor, "*n"]:
    """Return ``exp(-l) - 1 + l``; where the policy is so far below the reference that this exceeds 10 nats, its tangent
    takes over. Above the reference it comes near a line with slope 1 by itself.

    Unbiased as long as no token is beyond 10 nats; a far token is pulled back by 12.6 and no more.

    Source: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html. The tangent is ours,
    after Huber's loss.
    """
    floored = log_ratio.clamp(min=-EDGE)
    # expm1 keeps digits near 0, where k3 is a difference of nearly equal numbers.
    inner = torch.expm1(-floored) + floored
    tangent = MAX_KL_ESTIMATE - math.expm1(EDGE) * (log_ratio + EDGE)
    return torch.where(log_ratio < -EDGE, tangent, inner)


class K3:
    """See ``k3``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, log_ratio: torch.Tensor) -> torch.Tensor:
        return k3(log_ratio)


COMPONENT = Component(
    name="k3",
    factory=K3,
    summary="exp(-l) - 1 + l of the log-ratio l: unbiased, never negative",
    provides=frozenset({UNBIASED_KL}),
)
