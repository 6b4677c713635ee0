"""Data sources, prompt samplers, reward shapers, KL estimators and sample filters. One file each."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import (
    by_column,
    clip,
    curriculum,
    drop_errors,
    drop_stale,
    dynamic_sampling,
    length_bonus,
    normalize,
    overlong,
    stop_properly,
    zero_variance,
)
from .kl_estimators import k1, k2, k3
from .sources import function, hub_stream, jsonl_stream


@hookimpl
def rlhf_data_sources() -> list[Component[Any]]:
    return [jsonl_stream.COMPONENT, hub_stream.COMPONENT, function.COMPONENT]


@hookimpl
def rlhf_prompt_samplers() -> list[Component[Any]]:
    return [curriculum.COMPONENT, by_column.COMPONENT]


@hookimpl
def rlhf_reward_shapers() -> list[Component[Any]]:
    return [
        overlong.COMPONENT,
        stop_properly.COMPONENT,
        clip.COMPONENT,
        normalize.COMPONENT,
        length_bonus.COMPONENT,
    ]


@hookimpl
def rlhf_kl_estimators() -> list[Component[Any]]:
    return [k1.COMPONENT, k2.COMPONENT, k3.COMPONENT]


@hookimpl
def rlhf_sample_filters() -> list[Component[Any]]:
    return [
        dynamic_sampling.COMPONENT,
        zero_variance.COMPONENT,
        drop_stale.COMPONENT,
        drop_errors.COMPONENT,
    ]
