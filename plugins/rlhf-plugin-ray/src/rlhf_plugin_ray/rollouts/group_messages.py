"""Messages between the driver and a rollout worker about groups; one message is about many groups."""

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
    GroupSettings,
    Task,
    TokenColumns,
)

from ..batches.stored_tokens import StoredBlock, with_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """A group that a rollout worker is to play."""

    number: int
    """Number that names the group in messages; no two groups of a run have the same number."""
    task: Task
    settings: GroupSettings
    version: int
    """Newest version of the weights that all engines had when the driver sent the job. Engines with older weights
    refuse requests of this group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGroup:
    """The reason why a group could not be played.

    A failure holds plain values: an exception that the driver could not unpack would lose all groups of its message.
    """

    kind: type[RLHFError]
    """Nearest base class that the core defines; ``RLHFError`` itself for an exception that is not of its tree."""
    message: str
    """The exception's message, to be appended to the name of the process."""
    trace: str
    """Traceback of the exception in the worker."""

    @staticmethod
    def of(error: BaseException) -> FailedGroup:
        """Return the failure that describes an exception."""
        ours = isinstance(error, RLHFError)
        return FailedGroup(
            kind=next(
                (one for one in type(error).__mro__ if one.__module__ == RLHFError.__module__),
                RLHFError,
            ),
            message=f": {error}" if ours else f" failed: {type(error).__name__}: {error}",
            trace="".join(traceback.format_exception(error)),
        )

    def error(self, who: str) -> RLHFError:
        """Return an exception that names the process ``who`` and has the worker's traceback as a note."""
        out = self.kind(f"{who}{self.message}")
        out.add_note(self.trace)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsDone:
    """Groups that ended, by number. The tokens of all finished groups are in one separate block."""

    finished: Mapping[int, FinishedGroup]
    """Finished groups; ``batch.tokens`` of each names the group's rows in the block of tokens."""
    failed: Mapping[int, FailedGroup]
    """Reasons of the groups that could not be played."""


def pack_done(
    finished: Mapping[int, FinishedGroup], failed: Mapping[int, FailedGroup]
) -> tuple[GroupsDone, TokenColumns | None]:
    """Return the groups without their tokens, and one block with the tokens of all groups; None if no group has any."""
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


def unpack_done(done: GroupsDone, tokens: ray.ObjectRef[TokenColumns]) -> dict[int, FinishedGroup]:
    """Return the finished groups by number. Their tokens stay in the object store, under the reference ``tokens``."""
    block = StoredBlock(tokens)
    return {
        number: group
        if group.batch is None
        else replace(group, batch=with_blocks(group.batch, [block]))
        for number, group in done.finished.items()
    }
