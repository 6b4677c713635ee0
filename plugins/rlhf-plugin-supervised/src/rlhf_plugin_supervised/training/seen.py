"""Knowledge of a step about the rows that it trained on: numbers of rows, and columns of their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["row", "pair", "judged", "steps"]
"""Subject of what is learned: the tokens of a row, which of two neighboring rows was preferred, whether a row is good,
whether each of its steps is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNumbers:
    """Numbers of the model at the learned tokens of some rows, (sum of A,) each, from before the update."""

    numbers: NDArray[np.float32]
    """Log-prob of each, in nats; or the score there of a model that gives scores."""
    losses: NDArray[np.float32] | None = None
    """Loss of each, where the objective has one a token (``StepOutcome.losses``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow:
    """One row before the update. Numbers are of the update's own forward pass where there is no other one."""

    score: float
    """Mark that the model gives the row, larger for what it finds better: the mean log-prob of the learned tokens, the
    implicit reward of an answer, or a score."""
    numbers: Mapping[str, float]
    """Numbers by name: ``loss`` (nats), of a pair its ``margin``, and ``right``, 1 where the model tells the row as it
    is labeled."""
    chosen: bool | None = None
    """Whether it was preferred, or judged good; None: nobody says so."""
    steps: Sequence[tuple[float, float]] = ()
    """Score and label of each labeled step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Rows of an update that are recorded."""

    kind: Kind
    rows: Sequence[SeenRow]
    columns: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """(sum of A,) each, named as in ``contracts.SampleTokens``."""
