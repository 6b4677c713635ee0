"""What learns from rows of which kind: for messages, and for the command that ``rlhf data check`` prints."""

from __future__ import annotations

from collections.abc import Mapping

from .form import Kind

COMMANDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.PROMPTS: ("rlhf train", "rlhf generate"),
    Kind.CONVERSATIONS: ("rlhf sft",),
    Kind.RESPONSES: ("rlhf sft",),
    Kind.TEXTS: ("rlhf sft",),
    Kind.PAIRS: ("rlhf dpo", "rlhf rm"),
    Kind.JUDGED: ("rlhf dpo --preference.loss kto",),
    Kind.STEPS: ("rlhf prm",),
}
"""Kind -> commands that are for it, the usual one first."""


def commands_for(kind: Kind, spec: str, *, model: str = "MODEL") -> tuple[str, ...]:
    """Return whole command lines for a set of this kind.

    Args:
        spec: the set as the user wrote it, quoted for a shell.
        model: the model's path.
    """
    return tuple(f"{command} --model {model} --data {spec}" for command in COMMANDS[kind])
