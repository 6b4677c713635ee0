"""Rewards of a run as names and plain values, from which another process can build them."""

from __future__ import annotations

from rlhf_config.resolved import RewardOptions, Selection
from rlhf_core.contracts.runtime import RewardSpec
from rlhf_core.plugins import Plugins

SLOT, HOOK = "reward.use", "rlhf_rewards"


def spec_of(selection: Selection) -> RewardSpec:
    """Return the names and plain values from which ``selection_of`` makes the same selection in another process."""
    assert selection.reward is not None
    return RewardSpec(
        component=selection.ref(HOOK),
        section=selection.section,
        shared=selection.reward.model_dump(mode="json"),
    )


def selection_of(spec: RewardSpec, plugins: Plugins) -> Selection:
    """Return the selection that ``spec_of`` described, made of this process's plugins.

    Raises:
        PluginError: this process has no such reward.
    """
    registered = plugins.get(spec.component.kind, spec.component.name)
    return Selection(
        slot=SLOT,
        section=spec.section,
        registered=registered,
        options=registered.validate(spec.component.options),
        reward=RewardOptions.model_validate(dict(spec.shared)),
    )
