"""Model outputs for whole batches, whichever way a training backend goes through the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import RoleSpec, Statistic, TopTokens, TrajectoryColumns

from ..models.role_model import RoleModel
from ..rows.packed_rows import PackedRows, refuse_images
from .role_reader import RoleReader

Floats = NDArray[np.float32]
Score = Callable[[PackedRows], tuple[Tensor, ...]]
"""A function from packed rows to results, (M, ...) each."""
Passes = Callable[[TrajectoryColumns, Score], list[Floats]]
"""A function that applies a ``Score`` to all rows of a batch, without a gradient, and returns its results in the order
of the batch's actions, (sum of A, ...) each."""


class RowScores:
    """Model outputs of a role for whole batches.

    Args:
        passes: the backend's own way through the rows.
    """

    def __init__(self, reader: RoleReader, passes: Passes) -> None:
        self._reader, self._passes = reader, passes

    def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, Floats]:
        """Return the named statistics, (sum of A,) each, from one pass."""
        (columns,) = self._checked_passes(
            batch, lambda rows: (self._reader.statistics(rows, names),)
        )
        return {name: np.ascontiguousarray(columns[:, i]) for i, name in enumerate(names)}

    def logprobs(self, batch: TrajectoryColumns) -> Floats:
        """Return the log-prob of each action, (sum of A,) in nats."""
        return self.statistics(batch, ["logprobs"])["logprobs"]

    def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """Return the k most probable tokens at each action, (sum of A, k).

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        self._reader.check_vocabulary(k)
        token_ids, logprobs = self._checked_passes(
            batch, lambda rows: self._reader.top_tokens(rows, k)
        )
        return TopTokens(token_ids=token_ids.astype(np.int32), logprobs=logprobs)

    def values(self, batch: TrajectoryColumns) -> Floats:
        """Return the value of the state before each action, or the score at each action, (sum of A,).

        Raises:
            PluginError: the role has neither a value head nor a score head.
        """
        (values,) = self._checked_passes(batch, lambda rows: (self._reader.values(rows),))
        return values

    def _checked_passes(self, batch: TrajectoryColumns, score: Score) -> list[Floats]:
        if not self._reader.sees:
            refuse_images(
                batch
            )  # first: the ids of their places are likely to be none of the model's
        self._reader.check_ids(batch.token_ids)
        return self._passes(batch, score)


class OpenRole(NamedTuple):
    """A role that a backend has loaded. Dropping this frees the model."""

    model: RoleModel
    reader: RoleReader
    scores: RowScores

    @classmethod
    def of(cls, model: RoleModel, spec: RoleSpec, chunk: int, passes: Passes) -> OpenRole:
        """Open a role; arguments as those of ``RoleReader`` and ``RowScores``."""
        reader = RoleReader(model, spec, chunk)
        return cls(model, reader, RowScores(reader, passes))
