"""One form of rows: its name, how rows of it are told, the commands that learn from them, and the way to our own
columns."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rlhf_config.common import FormName

from ..source import Row


class RowKind(StrEnum):
    """Content of rows, which says what can be done with them."""

    PROMPTS = "prompts"
    CONVERSATIONS = "conversations"
    RESPONSES = "prompts with responses"
    TEXTS = "plain texts"
    PAIRS = "preference pairs"
    JUDGED = "answers with labels"
    STEPS = "solutions with labels of their steps"


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


def unchanged(row: Row) -> Row:
    """Return the row itself: its columns are our own."""
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class DataForm:
    """A form of rows."""

    name: FormName
    """Value of the option ``data.form``."""
    title: str
    """Words for a reader, in the plural."""
    kind: RowKind
    matches: Callable[[Row], bool]
    """Whether a row has the columns, with values of the types, of this form. What a row says is not looked at."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Options that name columns -> our own columns, which are there after ``own``."""
    own: Callable[[Row], Row] = unchanged
    """Way from a row to the columns of ``keys``, beside the row's others.

    It raises ``RowProblem`` for a row of another form, or with a part that has no place.
    """
    prompt: Callable[[Row], Row] | None = None
    """Way from a row of ``own`` to a row whose column ``prompt`` is what the policy is asked; None: it has none."""

    @property
    def is_own(self) -> bool:
        """Whether the columns of such rows are our own as they are."""
        return self.own is unchanged

    def is_part_of(self, other: DataForm) -> bool:
        """Return whether rows of this form are rows of another kind that lack a column."""
        return self.kind is not other.kind and set(self.keys.values()) < set(other.keys.values())
