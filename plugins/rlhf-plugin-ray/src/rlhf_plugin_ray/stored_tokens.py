"""Batches whose tokens stay in the object store of the machine that made them, until a rank pulls its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ray
from ray.exceptions import GetTimeoutError, RayError

from rlhf_core import RolloutError
from rlhf_core.contracts import DeferredTokens, TokenColumns, TrajectoryColumns

READ_TIMEOUT_S = 600.0
"""For one block to come from another machine."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """The tokens of one group, or of several that came together; it lasts as long as one of them does."""

    reference: ray.ObjectRef
    columns: TokenColumns | None = None
    """The same in this process, where it has waited for them."""

    def read(self) -> TokenColumns:
        """Fetch them to this process, blocking.

        Raises:
            RolloutError: they are gone with the machine that had them, or did not come in time.
        """
        if self.columns is not None:
            return self.columns
        try:
            columns: TokenColumns = ray.get(self.reference, timeout=READ_TIMEOUT_S)
        except (RayError, GetTimeoutError) as error:
            raise RolloutError(f"tokens of a batch could not be read: {error}") from error
        return columns


def without_tokens(batch: TrajectoryColumns) -> TrajectoryColumns:
    """Return what has one entry a row or turn, and which rows of which blocks the tokens are."""
    tokens = batch.tokens
    if isinstance(tokens, TokenColumns):
        tokens = DeferredTokens.whole(tokens, len(batch))
    assert isinstance(tokens, DeferredTokens)
    return replace(batch, tokens=tokens.with_blocks(()))


def with_blocks(
    batch: TrajectoryColumns, blocks: Sequence[TokenColumns | StoredBlock]
) -> TrajectoryColumns:
    """Undo ``without_tokens``, here or in another process."""
    assert isinstance(batch.tokens, DeferredTokens)
    return replace(batch, tokens=batch.tokens.with_blocks(blocks))


def references_of(batch: TrajectoryColumns) -> list[ray.ObjectRef] | None:
    """The blocks of a batch, in their order, if all of its tokens are in the store."""
    tokens = batch.tokens
    if not isinstance(tokens, DeferredTokens):
        return None
    stored = [block.reference for block in tokens.blocks if isinstance(block, StoredBlock)]
    return stored if len(stored) == len(tokens.blocks) else None
