"""Reward shapers and sample filters."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import (
    ClipConfig,
    LengthBonusConfig,
    NormalizeConfig,
    OverlongConfig,
    StopProperlyConfig,
)
from .filter_config import (
    DropErrorsConfig,
    DropStaleConfig,
    DynamicSamplingConfig,
    ZeroVarianceConfig,
)

_COMPARES_A_GROUP = frozenset({"group>=2"})


@hookimpl
def rlhf_reward_shapers() -> list[Component[Any]]:
    return [
        Component(
            name="overlong",
            factory="rlhf_plugin_shaping.overlong:Overlong",
            config=OverlongConfig,
            summary="a penalty that grows over the last tokens before the length limit (DAPO)",
        ),
        Component(
            name="stop_properly",
            factory="rlhf_plugin_shaping.stop_properly:StopProperly",
            config=StopProperlyConfig,
            summary="scales or replaces the reward of truncated samples (ProRL v2)",
        ),
        Component(
            name="clip",
            factory="rlhf_plugin_shaping.clip:Clip",
            config=ClipConfig,
            summary="cuts rewards to a range, before any baseline",
        ),
        Component(
            name="normalize",
            factory="rlhf_plugin_shaping.normalize:Normalize",
            config=NormalizeConfig,
            summary="rewards minus their running mean, divided by their running standard deviation",
        ),
        Component(
            name="length_bonus",
            factory="rlhf_plugin_shaping.length_bonus:LengthBonus",
            config=LengthBonusConfig,
            summary="a bonus for being shorter than the prompt's other samples (Kimi k1.5), or by token",
        ),
    ]


@hookimpl
def rlhf_sample_filters() -> list[Component[Any]]:
    return [
        Component(
            name="dynamic_sampling",
            factory="rlhf_plugin_shaping.dynamic_sampling:DynamicSampling",
            config=DynamicSamplingConfig,
            summary="keeps prompts whose mean reward is strictly inside a range (DAPO)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="zero_variance",
            factory="rlhf_plugin_shaping.zero_variance:ZeroVariance",
            config=ZeroVarianceConfig,
            summary="drops prompts whose samples all earned the same",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="drop_stale",
            factory="rlhf_plugin_shaping.drop_stale:DropStale",
            config=DropStaleConfig,
            summary="drops prompts with a token that too old weights sampled",
        ),
        Component(
            name="drop_errors",
            factory="rlhf_plugin_shaping.drop_errors:DropErrors",
            config=DropErrorsConfig,
            summary="drops prompts too many of whose samples report an error",
        ),
    ]
