"""Losses that imitate: supervised fine-tuning as a term of a run, and on-policy distillation from a teacher."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import distill, sft


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [distill.COMPONENT, sft.COMPONENT]
