"""What learns from rows of which kind: for messages, and for the command that ``rlhf data check`` prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from .form import Kind

COMMANDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.PROMPTS: ("rlhf generate", "rlhf train --reward NAME"),
    Kind.CONVERSATIONS: ("rlhf sft",),
    Kind.RESPONSES: ("rlhf sft",),
    Kind.TEXTS: ("rlhf sft",),
    Kind.PAIRS: ("rlhf dpo", "rlhf rm"),
    Kind.JUDGED: ("rlhf dpo --preference.loss kto",),
    Kind.STEPS: ("rlhf prm",),
}
"""Kind -> commands that are for it, the usual one first."""


def commands_for(
    kind: Kind, specs: Sequence[str], *, model: str = "MODEL", options: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return whole command lines for sets of this kind.

    Args:
        specs: the sets as the user wrote them.
        model: the model's path.
        options: further words of the command line.
    """
    words = shlex.join(["--model", model, "--data", *specs, *options])
    return tuple(f"{command} {words}" for command in COMMANDS[kind])
