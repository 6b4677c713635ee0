"""The log-ratio itself: unbiased, of any sign. In rewards alone: as a loss its gradient does not see the reference."""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.capabilities import NO_PULL, UNBIASED_KL
from rlhf_core.lazy import Float, torch


def k1(log_ratio: Float[torch.Tensor, "*n"]) -> Float[torch.Tensor, "*n"]:
    """Return ``l``, whose mean over the policy's samples is the KL.

    Its gradient as a loss is that of the log-prob, whatever the reference, and 0 on average.

    Source: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html.
    """
    return log_ratio


class K1:
    """See ``k1``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, log_ratio: torch.Tensor) -> torch.Tensor:
        return k1(log_ratio)


COMPONENT = Component(
    name="k1",
    factory=K1,
    summary="log-ratio l of policy and reference: unbiased, of any sign; for rewards",
    provides=frozenset({UNBIASED_KL, NO_PULL}),
)
