"""The state of all rows on the device, and its change by one token of each.

A row that has finished stands still: its index and position keep their numbers, and what the device goes on computing
for it lands behind its last token, until the host looks. So nothing is lost or written twice, however rarely that is.

Axes: ``R`` rows in use, ``S`` rows there is room for, ``A`` tokens of a completion at most.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..sequence import FLOATS, INTEGERS, Sequence

COLUMNS = (*INTEGERS, "alive")


class Look(NamedTuple):
    """State of the rows when the host looked."""

    counts: NDArray[np.int64]
    """(R,) tokens sampled by each row."""
    alive: NDArray[np.bool_]
    """(R,) false for rows that have finished."""


class DeviceRows:
    """Integers and floats of each row, its tokens and their log-probs.

    Args:
        longest: A.
    """

    def __init__(self, num_rows: int, longest: int, device: torch.device) -> None:
        self.device = device
        self._integers = torch.zeros(len(COLUMNS), num_rows, dtype=torch.int64, device=device)
        self._floats = torch.zeros(len(FLOATS), num_rows, device=device)
        self._columns = dict(zip(COLUMNS, self._integers, strict=True))
        self._columns |= dict(zip(FLOATS, self._floats, strict=True))
        # One place more than tokens: a row that stands still writes behind its last one.
        self._tokens = torch.zeros(num_rows, longest + 1, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(num_rows, longest + 1, device=device)

    def columns(self, rows: slice) -> dict[str, Tensor]:
        """Return each number of the rows (R,), by its name: views."""
        return {name: column[rows] for name, column in self._columns.items()}

    def seat(self, first: int, sequences: Several[Sequence], shifts: Several[int]) -> None:
        """Fill the rows from ``first`` on, so that ``append`` can take their first tokens.

        Args:
            shifts: of each sequence, what is added to a position for rotary embeddings.
        """
        integers, floats = [], []
        for sequence, shift in zip(sequences, shifts, strict=True):
            integers.append((*sequence.integers(shift), 1))
            floats.append(sequence.floats)
        rows = slice(first, first + len(sequences))
        self._integers[:, rows] = torch.tensor(integers, device=self.device).T
        self._floats[:, rows] = torch.tensor(floats, device=self.device).T

    def append(self, rows: slice, tokens: Tensor, logprobs: Tensor, is_eos: Tensor) -> None:
        """Take the next token (R,) of each row that is alive; the row ends with it at end-of-sequence, at its limit, or
        where its log-prob (R,) is not a number."""
        row = self.columns(rows)
        alive, index = row["alive"], row["index"]
        self._tokens[rows].scatter_(1, index[:, None], tokens[:, None].int())
        self._logprobs[rows].scatter_(1, index[:, None], logprobs[:, None])
        row["token"].copy_(torch.where(alive > 0, tokens, row["token"]))
        row["position"].add_(alive)
        index.add_(alive)
        ends = is_eos[tokens] | (index >= row["limit"]) | ~logprobs.isfinite()
        alive.mul_(~ends)

    def look(self, num_rows: int) -> Look:
        """Wait for the device and return the state of the first rows."""
        numbers = torch.stack([self._columns[name][:num_rows] for name in ("index", "alive")])
        counts, alive = numbers.cpu().numpy()
        return Look(counts, alive > 0)

    def tokens(
        self, rows: Several[int], longest: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return tokens and log-probs (len(rows), longest) of rows; those behind a row's count mean nothing."""
        which = torch.tensor(rows, device=self.device)
        found = (part[which, :longest].cpu().numpy() for part in (self._tokens, self._logprobs))
        tokens, logprobs = found
        return tokens, logprobs

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy the rows ``source`` onto the rows ``target``."""
        for columns in (self._integers, self._floats):
            columns[:, target] = columns[:, source]
        for written in (self._tokens, self._logprobs):
            written[target] = written[source]

    def leave(self, first: int) -> None:
        """Empty the rows from ``first`` on; computed only to fill up a size, they hold valid state then."""
        self._integers[:, first:] = 0
