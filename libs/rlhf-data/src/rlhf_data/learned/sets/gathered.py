"""Rows of sets as they are read: sequences, bad rows and what the log says of them, of all sets so far."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.errors import DataError

from ...chat.control_words import InertWords
from ...forms.recognizing import FormedSet, say_form
from ...forms.unread import say_unread_columns
from ...held_out.sides import Hashes, Side, number_of
from ...row_images import SeenRows, unread_images, warn_of_unread
from ...rows import BadRow, RowProblem, bad_row_error, describe_skipped
from ...source import Row, Source, Unreadable
from ...turn_order import TurnOrder
from ..options import SequenceOptions
from ..sequences import LearnedSequence, SequenceColumns
from .columns_on_disk import StoredColumns
from .token_cache import EntryWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSet:
    """Sequences of one set among those of all."""

    name: str
    first: int
    """Index of its first sequence."""
    end: int
    """Index behind its last one."""
    form: str | None = None
    """Name of the form of its rows; None: none was recognized."""
    num_columns: int = 0
    """Number of the columns of its first rows."""
    unread: str | None = None
    """Where its rows have images, for a model that reads text alone; None: the first rows have none."""
    unread_columns: tuple[str, ...] = ()
    """Columns of its first rows that nothing reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRows:
    """Sequences to learn from, and an account of the rows that they were made of."""

    columns: TrajectoryColumns
    """The sequences, ordered by uid: ``uid.prompt`` is the row's index in the concatenation of all sets, bad rows
    included. The action mask marks the learned tokens; every span of them is a turn."""
    total: int
    bad: tuple[BadRow, ...]
    """Rows that were left out, with the reasons."""
    inert: InertWords = field(default_factory=InertWords)
    """Count of the rows whose control words are ordinary text."""
    sets: tuple[LearnedSet, ...]
    read: Hashes
    """(B,) hash of what the model reads of each sequence's row: tokens and images of all its sequences."""

    def by_name(self) -> dict[str, NDArray[np.int64]]:
        """Return the indices of the sequences of each set by its name; sets of one name are one."""
        found: dict[str, list[NDArray[np.int64]]] = {}
        for one in self.sets:
            if one.end > one.first:
                found.setdefault(one.name, []).append(np.arange(one.first, one.end))
        return {name: np.concatenate(parts) for name, parts in found.items()}

    @property
    def num_truncated(self) -> int:
        """Number of sequences whose end was cut off."""
        return int(self.columns.truncated.sum())

    def describe(self) -> str:
        """Return one line for a log: rows, sequences, tokens, and how many of them are learned."""
        columns = self.columns
        return (
            f"{self.total - len(self.bad)} of {self.total} rows are {len(columns)} sequences with "
            f"{int(columns.num_tokens.sum())} tokens, {int(columns.num_actions.sum())} of them learned; "
            f"{self.num_truncated} sequences were cut off"
        )


class MadeRow(NamedTuple):
    """Sequences of a row, and its control words that are ordinary text."""

    sequences: list[LearnedSequence]
    inert: tuple[str, ...]
    num_images: int
    """Number of its images, those behind a cut too."""
    out_of_turn: str | None = None
    """Its first message that is out of turn."""


class Gathered:
    """Sequences and bad rows of all sets so far.

    Args:
        writer: takes the sequences, a batch at a time; None: they stay in memory.
    """

    def __init__(self, writer: EntryWriter | None = None) -> None:
        self._writer = writer
        self._sequences = SequenceColumns()
        self._read = array("Q")
        self._written = 0
        self._bad: list[BadRow] = []
        self._inert = InertWords()
        self._order = TurnOrder()
        self._total = 0
        self._sets: list[LearnedSet] = []
        self.seen: list[SeenRows] = []
        """Number of images of each set, of those that were read here."""

    @classmethod
    def of(cls, account: Mapping[str, Any]) -> Gathered:
        """Return what ``account`` described, without the sequences."""
        found = cls()
        found._total = account["total"]
        found._bad = [BadRow(**row) for row in account["bad"]]
        rows, words, first = account["inert"]
        found._inert = InertWords(rows, tuple(words), first)
        rows, shown = account["order"]
        found._order = TurnOrder(rows=rows, shown=tuple(shown))
        found._sets = [
            LearnedSet(**{**one, "unread_columns": tuple(one.get("unread_columns", ()))})
            for one in account["sets"]
        ]
        return found

    def account(self) -> dict[str, Any]:
        """Return all but the sequences as values that JSON carries."""
        inert = self._inert
        return {
            "total": self._total,
            "bad": [asdict(row) for row in self._bad],
            "inert": [inert.rows, inert.words, inert.first],
            "order": [self._order.rows, self._order.shown],
            "sets": [asdict(one) for one in self._sets],
        }

    def begin(self, opened: FormedSet[Any]) -> None:
        """Begin a set, to which the rows that follow belong."""
        count, source, form = self._written + len(self._sequences), opened.source, opened.form
        begun = LearnedSet(
            name=source.name,
            first=count,
            end=count,
            form=None if form is None else form.name,
            num_columns=opened.found.num_columns,
            unread=unread_images(source),
            unread_columns=opened.found.unread,
        )
        self._sets.append(begun)
        self.seen.append(SeenRows(source, 0))

    def say_unread(self, option: str) -> None:
        """Say of each set whose rows have images that a model that reads text alone does without them."""
        warn_of_unread(option, (one.unread for one in self._sets))

    def say_forms(self, option: str, sets: Sequence[str], columns: BaseModel) -> None:
        """Log the form of each set, and the columns that nothing reads.

        Args:
            sets: the sets as the user wrote them.
            columns: options that name columns.
        """
        for one, spec in zip(self._sets, sets, strict=True):
            if one.form is not None:
                say_form(one.form, one.num_columns, option, spec)
            say_unread_columns(one.unread_columns, columns, option, spec)

    def add(
        self,
        source: Source,
        start: int,
        batch: Sequence[tuple[int, Row | Unreadable]],
        rows: Iterable[tuple[int, MadeRow | RowProblem]],
    ) -> None:
        """Add rows of a source whose first row has the index ``start``."""
        self._total += len(batch)
        for index, made in rows:
            if isinstance(made, RowProblem):
                self._bad.append(BadRow(source.where(index), made.kind, made.reason))
                continue
            if made.inert:
                self._inert = self._inert.plus(made.inert, source.where(index))
            if made.out_of_turn is not None:
                self._order = self._order.plus(made.out_of_turn, source.where(index))
            seen = self.seen[-1]
            self.seen[-1] = seen._replace(num_images=seen.num_images + made.num_images)
            read = number_of(b"".join(map(_content, made.sequences)))
            for sequence in made.sequences:
                self._read.append(read)
                self._sequences.add(start + index, sequence)
        end = self._written + len(self._sequences)
        self._sets[-1] = replace(self._sets[-1], end=end)
        if self._writer is not None and len(self._sequences):
            self._writer.add(self._sequences.columns(), np.array(self._read, dtype=np.uint64))
            self._sequences, self._read, self._written = SequenceColumns(), array("Q"), end

    def check(self, options: SequenceOptions, option: str, side: Side) -> None:
        """Say which rows are left out.

        Raises:
            DataError: rows are bad (with ``on_bad_row = fail``), or no row is left.
        """
        bad, total, inert = self._bad, self._total, self._inert
        if bad and (options.on_bad_row == "fail" or len(bad) == total):
            raise bad_row_error(bad, total, option, None)
        if bad:
            log.warning("%s", describe_skipped(bad, total, option))
        if not self._sets or not self._sets[-1].end:
            raise DataError(f"{option}: {side.lacks}", code="data/no-rows")
        if inert.rows:
            log.warning("%s", inert.describe(total, option))
        if self._order.rows:
            log.warning("%s", self._order.describe(total, option))

    def rows(self, option: str, stored: StoredColumns | None = None) -> LearnedRows:
        """Return all rows.

        Args:
            stored: the sequences; None: they are in memory.
        """
        if stored is None:
            read = np.array(self._read, dtype=np.uint64)
            stored = StoredColumns(self._sequences.columns(), read)
        found = LearnedRows(
            columns=stored.columns,
            total=self._total,
            bad=tuple(self._bad),
            inert=self._inert,
            sets=tuple(self._sets),
            read=stored.read,
        )
        log.info("%s: %s", option, found.describe())
        return found


def _content(sequence: LearnedSequence) -> bytes:
    """Return what the model reads of a sequence as bytes."""
    images = "".join(span.image.sha256 for span in sequence.media)
    return sequence.token_ids.astype(np.int32).tobytes() + images.encode()
