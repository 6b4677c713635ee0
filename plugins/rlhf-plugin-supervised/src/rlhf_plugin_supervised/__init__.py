"""Learning from examples: the command ``rlhf sft``, and losses that imitate responses or a teacher within a run."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import distill, sft


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [distill.COMPONENT, sft.COMPONENT]


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    """Return the ``sft`` command; its module is imported when the command runs."""
    return [
        Component(
            name="sft",
            factory="rlhf_plugin_supervised.finetuning.command:main",
            summary="Teach a model the answers in a data set (supervised fine-tuning).",
        )
    ]
