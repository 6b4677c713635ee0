"""Cases of an audit: one side's sequences, their plain reading, and what a hypothesis may need beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .forward import Reading
from .sequences import Recorded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Gap = Callable[[Reading], float]
"""Mean gap in nats that a reading leaves on the few sequences of a search; infinite where an action is impossible."""
Variants = Iterator[tuple[str, Reading]]
"""A cause in words, and its reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plain reading of sequences, and what a hypothesis may need beside it."""

    plain: Reading
    sequences: Sequence[Recorded]
    special: Mapping[str, int]
    """Ids of the tokens ``pad``, ``bos`` and ``eos``, where the model's folder has them."""
    others: Mapping[str, PreTrainedModel]
    """Name -> other weights that a side may have had."""
    recorded: Sequence[Recorded] = ()
    """Sequences of the whole step with the side's log-probs, of which ``sequences`` are a part; empty: they are all."""
    base: PreTrainedModel | None = None
    """The plain reading's model without its adapter; None: it has none."""


Hypothesis = Callable[[Case, Gap], Variants]
"""Yields the readings that a cause may have led to, with parameters that a search has found."""
