"""The gradient of an update, or one error on every rank where a pass failed on some: to be computed anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from rlhf_core.contracts import TrajectoryColumns

from ..training.host_memory import release_cached
from .ranks import Ranks

_UNLIKE_GRAPHS, _NO_MEMORY = 1, 2
"""Failures of a pass that may be done anew, 0 being none; of several ranks' the largest counts."""


class Descending(Protocol):
    """Training of a role on ranks, as far as the gradient of an update goes."""

    def drop_gradient(self) -> None:
        """Forget what an attempt before has added to the gradient of the update."""

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """Return the loss that ``work`` computes."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this micro-batch, the last one or not, to the gradient of the update."""

    def give_up_pass(self) -> None:
        """Take part in what other ranks do in a pass that failed here."""

    def complete(self) -> None:
        """Sum the gradient over ranks, as far as ``backward`` has not."""


def compute_gradient(
    training: Descending, works: Sequence[Callable[[], Tensor]], ranks: Ranks, *, recovers: bool
) -> None:
    """Compute the gradient of an update, summed over ranks; a collective call.

    Args:
        works: computes the loss of each pass. All ranks have equally many.
        recovers: a rank on which a pass fails takes part in the exchange of gradients to its end, so that no rank
            waits, and all ranks then raise the error.

    Raises:
        torch.OutOfMemoryError: the memory of some rank does not suffice.
        torch.utils.checkpoint.CheckpointError: a layer was recomputed by another graph than its forward pass on some
            rank, see ``TokenLimit.within``.
    """
    training.drop_gradient()
    failure, words = 0, ""
    for number, work in enumerate(works, start=1):
        if not failure:
            try:
                training.backward(training.forward(work), last=number == len(works))
                continue
            except (torch.OutOfMemoryError, CheckpointError) as error:
                if not recovers:
                    raise
                is_memory = isinstance(error, torch.OutOfMemoryError)
                failure, words = _NO_MEMORY if is_memory else _UNLIKE_GRAPHS, str(error)
            # Outside of the except block: the error holds the frames, and they the tensors, of what has failed.
            release_cached(ranks.device)
        training.give_up_pass()
    if recovers and (worst := ranks.largest(failure)):
        own = words if failure == worst else ""
        kind = torch.OutOfMemoryError if worst == _NO_MEMORY else CheckpointError
        raise kind(own or "a pass failed on another rank of the role")
    training.complete()


def sizes(
    batches: Sequence[TrajectoryColumns | None], rows_per_unit: int, ranks: Ranks
) -> tuple[int, int]:
    """Return the tokens of all rows, and of the longest rows that stay together, on the rank where each is most.

    A collective call.
    """
    lengths = [batch.num_tokens for batch in batches if batch is not None and len(batch)]
    units = [length.reshape(-1, rows_per_unit).sum(axis=1) for length in lengths[:1]]
    longest = max((int(length.max()) for length in [*units, *lengths[1:]]), default=0)
    total = max((int(length.sum()) for length in lengths), default=0)
    return ranks.largest(total), ranks.largest(longest)
