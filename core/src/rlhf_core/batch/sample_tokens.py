"""Tokens of a sample with their columns, for observers that record them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..lazy import NDArray, np

if TYPE_CHECKING:  # modules of numpy, which observers are declared without
    from .token_columns import Rows
    from .trajectory_columns import TrajectoryColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTokens:
    """Tokens of one sample, and numbers at its actions. ``T`` tokens, ``A`` of them actions: those of the policy."""

    token_ids: NDArray[np.int32]
    """(T,)"""
    texts: tuple[str, ...]
    """T texts, each of one token alone, control words too: a character of several tokens is whole in none of them."""
    action_mask: NDArray[np.bool_]
    """(T,)"""
    weight_version: NDArray[np.int32]
    """(A,) version of the weights that sampled each action."""
    columns: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """(A,) each: ``rollout_logprobs``, NaN where nobody asked the engine for them, and what the step computed before
    its updates: ``advantages``, those of ``old_logprobs``, ``ref_logprobs`` and ``values`` that the run demands, and
    ``entropy`` (nats, after the temperature), where a pass over all of the batch came before the first update or with
    it. And ``loss`` and ``clipped`` (``StepOutcome.losses``, ``StepOutcome.clipped``) of the last update with the
    sample."""


class Decodes(Protocol):
    """Part of ``contracts.Renderer``, which this package cannot import."""

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> Sequence[str]:
        """Return the text of each sequence."""


Learned: TypeAlias = "Mapping[str, NDArray[np.float32]]"
"""Columns of (sum of A,) each."""


def learned_of(learned: Learned, batch: TrajectoryColumns, rows: Rows) -> Learned:
    """Return the columns of some rows of a batch.

    Columns of another batch, such as one with rows whose rewards did not count, are left out. So are ``old_logprobs``
    that are the sampler's own, which a run may take in their place: they say nothing of the trainer.
    """
    actions, sampled = batch.action_index(rows), batch.rollout_logprobs
    return {
        name: column[actions]
        for name, column in learned.items()
        if len(column) == len(sampled)
        and not (name == "old_logprobs" and np.array_equal(column, sampled))
    }


def tokens_entry(
    learned: Learned, batch: TrajectoryColumns, row: int, renderer: Decodes
) -> dict[str, Any]:
    """Return the tokens of a row as the entry ``tokens`` of a sample.

    Args:
        learned: ``learned_of`` this batch.
        renderer: tells the text of each token.
    """
    read = batch.tokens.read()
    span = slice(*batch.token_offsets[row : row + 2].tolist())
    actions = slice(*batch.action_offsets[row : row + 2].tolist())
    token_ids, sampled = read.token_ids[span], read.rollout_logprobs[actions]
    columns = {name: column[actions] for name, column in learned.items()}
    found, places = np.unique(token_ids, return_inverse=True)
    texts = renderer.decode_batch([[token] for token in found.tolist()], skip_special_tokens=False)
    tokens = SampleTokens(
        token_ids=token_ids,
        texts=tuple(texts[place] for place in places.tolist()),
        action_mask=read.action_mask[span],
        weight_version=read.weight_version[actions],
        columns={**columns, "rollout_logprobs": sampled},
    )
    return {"tokens": tokens}
