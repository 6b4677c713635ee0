"""Policy losses for data that an older or another policy sampled."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import CispoConfig, DecoupledPpoConfig, DppoConfig, ToprConfig

_FACTORIES = "rlhf_plugin_offpolicy.losses.components"


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [
        Component(
            name="cispo",
            factory=f"{_FACTORIES}:CispoLoss",
            config=CispoConfig,
            summary="log-prob weighted with the bounded ratio; no token loses its gradient (CISPO)",
            provides=frozenset({"aggregation:token-mean", "off_policy"}),
        ),
        Component(
            name="dppo",
            factory=f"{_FACTORIES}:DppoLoss",
            config=DppoConfig,
            summary="trust region on the divergence of the distribution, not on the ratio (DPPO)",
            provides=frozenset({"off_policy"}),
        ),
        Component(
            name="topr",
            factory=f"{_FACTORIES}:ToprLoss",
            config=ToprConfig,
            summary="bad sequences weighted with their ratio to the sampler, at most 1 (TOPR)",
            needs=frozenset({"rollout_logprobs"}),
            # The ratio to the sampler is already there; a correction would put it on a second time. With top-p and the
            # like the sampler's log-probs are those of another distribution.
            conflicts=frozenset({"is_correction", "renormalized_sampling"}),
            # The gradient of a sequence's log-prob is the sum over its tokens.
            provides=frozenset({"aggregation:seq-mean-token-sum-norm", "off_policy"}),
        ),
        Component(
            name="decoupled_ppo",
            factory=f"{_FACTORIES}:DecoupledPpoLoss",
            config=DecoupledPpoConfig,
            summary="PPO around the old policy, weighted by old / rollout (AReaL's decoupled loss)",
            needs=frozenset({"rollout_logprobs", "old_logprobs"}),
            # Its weight is a correction. With the sampler's log-probs as the old ones there would be none.
            conflicts=frozenset({"is_correction", "renormalized_sampling", "rollout_as_old"}),
            provides=frozenset({"off_policy"}),
        ),
    ]
