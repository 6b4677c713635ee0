"""Learning from examples: commands that train on them, and losses that imitate within other runs."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import distill, sft


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [distill.COMPONENT, sft.COMPONENT]


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    """Return the commands; their module is imported when one of them runs."""
    return [
        Component(
            name="sft",
            factory="rlhf_plugin_supervised.training.command:sft",
            summary="Teach a model the answers in a data set (supervised fine-tuning).",
        ),
        Component(
            name="dpo",
            factory="rlhf_plugin_supervised.training.command:dpo",
            summary="Teach a model which of two answers was preferred (DPO and related losses).",
        ),
        Component(
            name="rm",
            factory="rlhf_plugin_supervised.training.command:rm",
            summary="Train a reward model on answers of which one was preferred.",
        ),
        Component(
            name="prm",
            factory="rlhf_plugin_supervised.training.command:prm",
            summary="Train a process reward model on solutions whose steps have labels.",
        ),
        Component(
            name="distill",
            factory="rlhf_plugin_supervised.training.command:distill",
            summary="Teach a model the distribution of a teacher on given conversations.",
        ),
    ]
