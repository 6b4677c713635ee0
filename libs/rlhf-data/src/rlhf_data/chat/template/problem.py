"""Problem of messages and a chat template."""

from __future__ import annotations

from rlhf_core.errors import DataError

from ...source import code_of

REFUSED = "chat template"
HIDDEN = "hidden by the template"
PART = "unknown part"
BAD = "bad message"


class TemplateProblem(DataError):
    """Messages that a chat template refuses, cannot show, or does not show whole.

    Args:
        reason: expected, what came, and the fix.
        kind: a few words that are the same for all problems of the sort.
    """

    def __init__(self, reason: str, kind: str = REFUSED) -> None:
        super().__init__(reason, code=code_of(kind))
        self.kind = kind


def shortened(value: object, limit: int = 200) -> str:
    """Return a value as one line of at most ``limit`` characters, for a message."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
