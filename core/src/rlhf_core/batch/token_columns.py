"""Trajectories as columns, one entry a token or action: large, and therefore not always in this process's memory. Rows
of different lengths lie one after the other in one flat array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from ..lazy import NDArray, np

Rows: TypeAlias = "NDArray[np.integer]"

LONG_ROW = 64
"""Mean number of elements per row above which rows are copied one by one."""


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return (B + 1,) the position at which each row begins, and at the end the position after the last row."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ragged_index(offsets: NDArray[np.int64], rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the positions of the elements of ``rows``, in order, without a loop over rows."""
    lengths = np.diff(offsets)[rows]
    starts = np.repeat(offsets[:-1][rows] - offsets_of(lengths)[:-1], lengths)
    index: NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64) + starts
    return index


def taker(
    offsets: NDArray[np.int64], rows: NDArray[np.integer]
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return a function that takes the elements of ``rows``, in order, from a column."""
    starts, ends = offsets[:-1][rows], offsets[1:][rows]
    if int((ends - starts).sum()) <= LONG_ROW * len(rows):
        index = ragged_index(offsets, rows)
        return lambda column: column[index]
    # An index would be larger than the elements themselves: it has 8 bytes for each.
    spans = list(map(slice, starts.tolist(), ends.tolist()))
    return lambda column: np.concatenate([column[span] for span in spans])


def packed(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    """Return all parts as one array, with a single copy since batches are large."""
    return np.concatenate(parts).astype(dtype, copy=False)


class Tokens(Protocol):
    """The tokens of some rows, in this process's memory or elsewhere."""

    def read(self) -> TokenColumns:
        """Return the tokens in this process's memory."""

    def select(self, rows: Rows) -> Tokens:
        """Return the given rows, in the given order."""


class Block(Protocol):
    """Tokens of some rows that can only be read all together."""

    def read(self) -> TokenColumns: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """Tokens in memory, or mapped into it. Row b owns ``x[offsets[b]:offsets[b + 1]]``."""

    token_ids: NDArray[np.int32]
    """(sum of T,)"""
    action_mask: NDArray[np.bool_]
    """(sum of T,) True at actions."""
    token_offsets: NDArray[np.int64]
    """(B + 1,) offsets of the columns of (sum of T,)."""
    rollout_logprobs: NDArray[np.float32]
    """(sum of A,) natural log-probability of each action under the sampler; NaN where nobody asked for it."""
    weight_version: NDArray[np.int32]
    """(sum of A,) version of the weights that sampled each action."""
    action_offsets: NDArray[np.int64]
    """(B + 1,) offsets of the columns of (sum of A,)."""
    routes: NDArray[np.signedinteger] | None = None
    """(sum of T, L, k) ``Trajectory.routes``; None: of no row."""

    def __len__(self) -> int:
        return len(self.token_offsets) - 1

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns."""
        columns = (self.token_ids, self.action_mask, self.rollout_logprobs, self.weight_version)
        routes = 0 if self.routes is None else self.routes.nbytes
        return sum(column.nbytes for column in columns) + routes

    def read(self) -> TokenColumns:
        return self

    def select(self, rows: Rows) -> TokenColumns:
        """Return the given rows, in the given order."""
        tokens = taker(self.token_offsets, rows)
        actions = taker(self.action_offsets, rows)
        return TokenColumns(
            token_ids=tokens(self.token_ids),
            action_mask=tokens(self.action_mask),
            token_offsets=offsets_of(np.diff(self.token_offsets)[rows]),
            rollout_logprobs=actions(self.rollout_logprobs),
            weight_version=actions(self.weight_version),
            action_offsets=offsets_of(np.diff(self.action_offsets)[rows]),
            routes=None if self.routes is None else tokens(self.routes),
        )

    def version_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (B,) the oldest version of each row, and (B, W) the number of actions of each version from it on."""
        lengths = np.diff(self.action_offsets)
        oldest = np.zeros(len(lengths), dtype=np.int64)
        rows = np.flatnonzero(lengths)
        if not len(rows):
            return oldest, np.zeros((len(lengths), 1), dtype=np.int64)
        versions, starts = self.weight_version, self.action_offsets[:-1][rows]
        oldest[rows] = np.minimum.reduceat(versions, starts)
        width = int((np.maximum.reduceat(versions, starts) - oldest[rows]).max()) + 1
        if width == 1:
            return oldest, lengths[:, None]
        cell = np.repeat(np.arange(len(lengths)) * width - oldest, lengths) + versions
        return oldest, np.bincount(cell, minlength=len(lengths) * width).reshape(-1, width)

    @staticmethod
    def concatenate(parts: Sequence[TokenColumns]) -> TokenColumns:
        """Return the rows of all parts, in the order of the parts."""
        if len(parts) == 1:
            return parts[0]
        parts = parts or [_nothing()]
        return TokenColumns(
            token_ids=np.concatenate([part.token_ids for part in parts]),
            action_mask=np.concatenate([part.action_mask for part in parts]),
            token_offsets=_joined_offsets([part.token_offsets for part in parts]),
            rollout_logprobs=np.concatenate([part.rollout_logprobs for part in parts]),
            weight_version=np.concatenate([part.weight_version for part in parts]),
            action_offsets=_joined_offsets([part.action_offsets for part in parts]),
            routes=joined_routes(
                [part.routes for part in parts], [len(part.token_ids) for part in parts]
            ),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class DeferredTokens:
    """Rows of blocks that stay where they were made until they are read, then all rows at once."""

    blocks: tuple[Block, ...]
    """Blocks whose rows follow each other."""
    block: NDArray[np.int64]
    """(B,) index in ``blocks`` of each row's block."""
    row: NDArray[np.int64]
    """(B,) index of each row in its block."""
    _columns: TokenColumns | None = field(default=None, init=False, repr=False)
    """The rows, once they have been read."""

    @staticmethod
    def whole(block: Block, num_rows: int) -> DeferredTokens:
        """Return all rows of a block, in their order."""
        return DeferredTokens(
            blocks=(block,), block=np.zeros(num_rows, dtype=np.int64), row=np.arange(num_rows)
        )

    def read(self) -> TokenColumns:
        """Return the rows in this process's memory, where they stay as long as this object does."""
        if self._columns is None:
            order = np.argsort(self.block, kind="stable")
            counts = np.bincount(self.block, minlength=len(self.blocks))
            ends = np.cumsum(counts)
            parts = [
                block.read().select(self.row[order[end - count : end]])
                for block, count, end in zip(self.blocks, counts, ends, strict=True)
                if count
            ]
            joined = TokenColumns.concatenate(parts)
            self._columns = joined if _is_sorted(order) else joined.select(np.argsort(order))
        return self._columns

    def select(self, rows: Rows) -> DeferredTokens:
        """Return the given rows, in the given order; blocks without a row are let go."""
        used, block = np.unique(self.block[rows], return_inverse=True)
        return DeferredTokens(
            blocks=tuple(self.blocks[index] for index in used.tolist()),
            block=np.asarray(block, dtype=np.int64).reshape(-1),
            row=self.row[rows],
        )

    def with_blocks(self, blocks: Sequence[Block]) -> DeferredTokens:
        """Return the same rows with other blocks, such as copies for another process, or with none."""
        return DeferredTokens(blocks=tuple(blocks), block=self.block, row=self.row)


def joined_tokens(parts: Sequence[Tokens]) -> Tokens:
    """Return the rows of all parts, in their order. Deferred parts stay deferred; a block that parts share is one."""
    here = [part for part in parts if isinstance(part, TokenColumns)]
    if len(here) == len(parts):
        return TokenColumns.concatenate(here)
    deferred = [
        part if isinstance(part, DeferredTokens) else DeferredTokens.whole(part, len(part.read()))
        for part in parts
    ]
    # Shared blocks are recognized by identity, because comparing their content might read them.
    places = {id(block): block for part in deferred for block in part.blocks}
    index = {key: place for place, key in enumerate(places)}
    own = [np.array([index[id(block)] for block in part.blocks]) for part in deferred]
    return DeferredTokens(
        blocks=tuple(places.values()),
        block=np.concatenate(
            [places_of[part.block] for part, places_of in zip(deferred, own, strict=True)]
        ),
        row=np.concatenate([part.row for part in deferred]),
    )


def joined_routes(
    parts: Sequence[NDArray[np.signedinteger] | None], lengths: Sequence[int]
) -> NDArray[np.signedinteger] | None:
    """Return the routes (T, L, k) of tokens in several parts as one array; None: no part has any.

    Args:
        lengths: tokens of each part. Those of a part without routes get -1.

    Raises:
        ValueError: parts have routes of different numbers of layers, or of experts.
    """
    shapes = {part.shape[1:] for part in parts if part is not None}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise ValueError(
            f"routes of different models: (layers, experts of a token) are {sorted(shapes)}; expected the same"
        )
    (shape,) = shapes
    return np.concatenate(
        [
            np.full((length, *shape), -1, dtype=np.int8) if part is None else part
            for part, length in zip(parts, lengths, strict=True)
        ]
    )


def _nothing() -> TokenColumns:
    none = offsets_of(np.zeros(0, dtype=np.int64))
    return TokenColumns(
        token_ids=np.zeros(0, dtype=np.int32),
        action_mask=np.zeros(0, dtype=np.bool_),
        token_offsets=none,
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        weight_version=np.zeros(0, dtype=np.int32),
        action_offsets=none,
    )


def _joined_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return offsets_of(np.concatenate([np.diff(part) for part in parts]))


def _is_sorted(order: NDArray[np.int64]) -> bool:
    return bool((order == np.arange(len(order))).all())
