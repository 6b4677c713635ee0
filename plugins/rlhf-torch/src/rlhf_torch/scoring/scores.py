"""The scoring calls of a training backend, whatever way it goes through the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import RoleSpec, Statistic, TopTokens, TrajectoryColumns

from ..models.role_model import RoleModel
from ..rows.packed_rows import PackedRows
from .role_reader import RoleReader

Floats = NDArray[np.float32]
Score = Callable[[PackedRows], tuple[Tensor, ...]]
"""From packed rows to results, (M, ...) each."""
Passes = Callable[[TrajectoryColumns, Score], list[Floats]]
"""Applies a score to all rows, without a gradient; returns its results where the actions are, (sum of A, ...) each."""


class RowScores:
    """Reads a role for whole batches.

    Args:
        passes: the backend's own way through the rows.
    """

    def __init__(self, reader: RoleReader, passes: Passes) -> None:
        self._reader, self._passes = reader, passes

    def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, Floats]:
        """(sum of A,) each, in one pass."""
        (columns,) = self._passes(batch, lambda rows: (self._reader.statistics(rows, names),))
        return {name: np.ascontiguousarray(columns[:, i]) for i, name in enumerate(names)}

    def logprobs(self, batch: TrajectoryColumns) -> Floats:
        """(sum of A,) of each action."""
        return self.statistics(batch, ["logprobs"])["logprobs"]

    def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """The k most probable tokens at each action.

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        self._reader.check_vocabulary(k)
        token_ids, logprobs = self._passes(batch, lambda rows: self._reader.top_tokens(rows, k))
        return TopTokens(token_ids=token_ids.astype(np.int32), logprobs=logprobs)

    def values(self, batch: TrajectoryColumns) -> Floats:
        """(sum of A,) of the state before each action.

        Raises:
            PluginError: the role is no critic.
        """
        (values,) = self._passes(batch, lambda rows: (self._reader.values(rows),))
        return values


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
