"""Batches whose tokens stay in the object store of the machine that sampled them, until a rank fetches its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ray
from ray.exceptions import GetTimeoutError, RayError

from rlhf_core import RolloutError
from rlhf_core.contracts import DeferredTokens, TokenColumns, TrajectoryColumns

READ_TIMEOUT_S = 600.0
"""Deadline, in seconds, for one block to arrive from another machine."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """The tokens of the groups of one message. The object store keeps a block as long as one of its groups lives."""

    reference: ray.ObjectRef[TokenColumns]
    columns: TokenColumns | None = None
    """The block's tokens, where this process has fetched them already."""

    def read(self) -> TokenColumns:
        """Return the block's tokens, which may block until they have arrived from another machine.

        Raises:
            RolloutError: the machine that held the tokens is gone, or the tokens did not arrive in time.
        """
        if self.columns is not None:
            return self.columns
        try:
            columns: TokenColumns = ray.get(self.reference, timeout=READ_TIMEOUT_S)
        except (RayError, GetTimeoutError) as error:
            raise RolloutError(
                f"tokens of a batch could not be read: {error}", code="ray/tokens-lost"
            ) from error
        return columns


def without_tokens(batch: TrajectoryColumns) -> TrajectoryColumns:
    """Return a batch without the columns that have one entry a token, and with the rows of blocks that hold them."""
    tokens = batch.tokens
    if isinstance(tokens, TokenColumns):
        tokens = DeferredTokens.whole(tokens, len(batch))
    assert isinstance(tokens, DeferredTokens)
    return replace(batch, tokens=tokens.with_blocks(()))


def with_blocks(
    batch: TrajectoryColumns, blocks: Sequence[TokenColumns | StoredBlock]
) -> TrajectoryColumns:
    """Return the batch with the blocks that hold its tokens: the inverse of ``without_tokens``, in any process.

    Args:
        blocks: blocks in the order in which ``references_of`` gave them.
    """
    assert isinstance(batch.tokens, DeferredTokens)
    return replace(batch, tokens=batch.tokens.with_blocks(blocks))


def references_of(batch: TrajectoryColumns) -> list[ray.ObjectRef[TokenColumns]] | None:
    """Return references to a batch's blocks, in order; None unless all of its tokens are in the object store."""
    tokens = batch.tokens
    if not isinstance(tokens, DeferredTokens):
        return None
    stored = [block.reference for block in tokens.blocks if isinstance(block, StoredBlock)]
    return stored if len(stored) == len(tokens.blocks) else None
