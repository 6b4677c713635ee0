"""Commands that learn from rows of each kind: for messages, and for what ``rlhf data check`` prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from .form import RowKind

COMMANDS: Mapping[RowKind, tuple[str, ...]] = {
    RowKind.PROMPTS: ("rlhf generate", "rlhf train --reward NAME"),
    RowKind.CONVERSATIONS: ("rlhf sft",),
    RowKind.RESPONSES: ("rlhf sft",),
    RowKind.TEXTS: ("rlhf sft",),
    RowKind.PAIRS: ("rlhf dpo", "rlhf rm"),
    RowKind.JUDGED: ("rlhf dpo --preference.loss kto",),
    RowKind.STEPS: ("rlhf prm",),
}
"""Kind -> commands that are for it, the usual one first."""


def commands_for(
    kind: RowKind, specs: Sequence[str], *, model: str = "MODEL", options: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return whole command lines for sets of this kind.

    Args:
        specs: the sets as the user wrote them.
        model: the model's path.
        options: further words of the command line.
    """
    words = shlex.join(["--model", model, "--data", *specs, *options])
    return tuple(f"{command} {words}" for command in COMMANDS[kind])
