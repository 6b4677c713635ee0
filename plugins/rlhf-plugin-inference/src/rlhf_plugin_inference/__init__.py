"""Registration of the commands that use a trained model (``rlhf generate``, ``eval``, ``chat``, ``merge``), and of
metrics of evaluations."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .eval_metrics import distinct, majority


@hookimpl
def rlhf_eval_metrics() -> list[Component[Any]]:
    return [majority.COMPONENT, distinct.COMPONENT]


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    """Return the commands; a command's module is imported when the command runs."""
    return [
        Component(
            name="chat",
            factory="rlhf_plugin_inference.chat.command:chat",
            summary="Hold a conversation with a model, on the terminal or through a pipe.",
        ),
        Component(
            name="eval",
            factory="rlhf_plugin_inference.eval_command:run_eval",
            summary="Evaluate a model on tasks, without training, or compare two evaluations.",
        ),
        Component(
            name="generate",
            factory="rlhf_plugin_inference.generate.command:generate",
            summary="Write completions of prompts, score them, and choose rows to train on.",
        ),
        Component(
            name="merge",
            factory="rlhf_plugin_inference.merge.command:merge",
            summary="Merge a PEFT adapter into its base model.",
            extra="peft",
        ),
    ]
