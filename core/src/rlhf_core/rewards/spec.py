"""A run's rewards as names and plain values, for processes that build them themselves."""

from __future__ import annotations

from ..config.resolved import RewardOptions, Selection
from ..contracts.runtime import RewardSpec
from ..plugins import Plugins

SLOT, HOOK = "reward.use", "rlhf_rewards"


def spec_of(selection: Selection) -> RewardSpec:
    """Return what another process needs to make the same selection."""
    assert selection.reward is not None
    return RewardSpec(
        component=selection.ref(HOOK),
        section=selection.section,
        shared=selection.reward.model_dump(mode="json"),
    )


def selection_of(spec: RewardSpec, plugins: Plugins) -> Selection:
    """Undo ``spec_of`` with this process's plugins.

    Raises:
        PluginError: there is no such reward here.
    """
    registered = plugins.get(spec.component.kind, spec.component.name)
    return Selection(
        slot=SLOT,
        section=spec.section,
        registered=registered,
        options=registered.validate(spec.component.options),
        reward=RewardOptions.model_validate(dict(spec.shared)),
    )
