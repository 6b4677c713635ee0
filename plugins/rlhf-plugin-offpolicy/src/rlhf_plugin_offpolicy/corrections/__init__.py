"""Importance-sampling corrections between the sampler's policy and the trainer's."""

from typing import Any

from rlhf_core import Component, hookimpl


@hookimpl
def rlhf_is_corrections() -> list[Component[Any]]:
    return []
