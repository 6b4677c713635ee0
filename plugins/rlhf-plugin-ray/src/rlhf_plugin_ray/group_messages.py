"""What goes between the driver and a rollout worker about groups: many in one message, each way."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import ray

from rlhf_core import RLHFError
from rlhf_core.contracts import (
    DeferredTokens,
    FinishedGroup,
    GroupTerms,
    Task,
    TokenColumns,
)

from .stored_tokens import StoredBlock, with_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """A group to play."""

    number: int
    """By which the two speak of it; never given twice in a run."""
    task: Task
    terms: GroupTerms
    version: int
    """Of the newest weights when it was sent; engines with older ones refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a group could not be played, as plain values: one that cannot be unpacked would take all groups with it."""

    kind: type[RLHFError]
    """The nearest class of the core's; ``RLHFError`` itself for what is none of ours."""
    message: str
    trace: str

    @staticmethod
    def of(error: BaseException) -> Failure:
        ours = isinstance(error, RLHFError)
        return Failure(
            kind=next(
                (one for one in type(error).__mro__ if one.__module__ == RLHFError.__module__),
                RLHFError,
            ),
            message=f": {error}" if ours else f" failed: {type(error).__name__}: {error}",
            trace="".join(traceback.format_exception(error)),
        )

    def error(self, who: str) -> RLHFError:
        """The error, which names the process."""
        out = self.kind(f"{who}{self.message}")
        out.add_note(self.trace)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsDone:
    """Groups that ended, by number. Their tokens come as one block, apart."""

    finished: Mapping[int, FinishedGroup]
    """Which rows of the block are a group's is in its batch."""
    failed: Mapping[int, Failure]


def pack_done(
    finished: Mapping[int, FinishedGroup], failed: Mapping[int, Failure]
) -> tuple[GroupsDone, TokenColumns | None]:
    """Return the groups without their tokens, and the tokens of all in one block; None if there are none."""
    blocks: list[TokenColumns] = []
    small: dict[int, FinishedGroup] = {}
    first = 0
    for number, group in finished.items():
        if group.batch is None:
            small[number] = group
            continue
        tokens, size = group.batch.tokens.read(), len(group.batch)
        rows = DeferredTokens(
            blocks=(), block=np.zeros(size, dtype=np.int64), row=np.arange(first, first + size)
        )
        small[number] = replace(group, batch=replace(group.batch, tokens=rows))
        blocks.append(tokens)
        first += size
    return GroupsDone(finished=small, failed=failed), (
        TokenColumns.concatenate(blocks) if blocks else None
    )


def unpack_done(done: GroupsDone, tokens: ray.ObjectRef) -> dict[int, FinishedGroup]:
    """Return the groups, whose tokens stay where ``tokens`` is."""
    block = StoredBlock(tokens)
    return {
        number: group
        if group.batch is None
        else replace(group, batch=with_blocks(group.batch, [block]))
        for number, group in done.finished.items()
    }
