"""Reading of data sets row by row into columns, with every bad row named before any training."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...batch.trajectory_columns import TrajectoryColumns
from ...errors import DataError
from ...media.reader import ImageReader
from ..chat.control_words import InertWords
from ..held_out.sides import ALL, Hashes, Side, hashes_of, number_of
from ..prompts import check_characters
from ..row_images import RowImages
from ..rows import BadRow, RowProblem, bad_row_error, describe_skipped
from ..source import Row, Source, Unreadable
from ..sources import open_source, split_name
from .images import with_images
from .learned_text import LearnedText
from .options import SequenceOptions
from .sequences import LearnedSequence, SequenceColumns
from .tokens import LearnedTokens, SpanTokenizer

log = logging.getLogger(__name__)

_BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRows:
    """Sequences to learn from, and an account of the rows that they were made of."""

    columns: TrajectoryColumns
    """The sequences, ordered by uid: ``uid.prompt`` is the row's index in the concatenation of all sets, bad rows
    included. The action mask marks the learned tokens; every span of them is a turn."""
    total: int
    """Number of rows that were read."""
    bad: tuple[BadRow, ...]
    """Rows that were left out, with the reasons."""
    inert: InertWords = field(default_factory=InertWords)
    """Count of the rows whose control words are ordinary text."""
    sets: Mapping[str, NDArray[np.int64]]
    """Indices of the sequences of each set, by its name."""
    read: Hashes
    """(B,) hash of what the model reads of each sequence's row: tokens and images of all its sequences."""

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


class RowForm(Protocol):
    """Way from a row to its sequences: its texts, which are tokenized with those of other rows, then the rest."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        ...

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of those that ask, and with the same values make rows fall on the same side of a split."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """Largest number of tokens of a text; None: a longer one is cut."""
        ...

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        """Return the texts of a row.

        Raises:
            RowProblem: the row, or an image of it, cannot be used.
        """
        ...

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        """Return the sequences of a row from the tokens of its texts, in the order of sample and segment.

        Raises:
            RowProblem: the row cannot be used.
        """
        ...


def read_rows(
    sets: Sequence[str],
    form: RowForm,
    tokenizer: SpanTokenizer,
    options: SequenceOptions,
    option: str,
    images: ImageReader | None = None,
    side: Side = ALL,
) -> LearnedRows:
    """Return the rows of some sets as columns.

    Args:
        sets: files, folders or hub names, each as it is or as ``NAME=PATH``.
        option: option that names the sets, for messages.
        images: reader of the rows' images; None: the model reads text alone.
        side: rows to read where a share of them is held out.

    Raises:
        DataError: a set cannot be opened, rows are bad (with ``on_bad_row = fail``), or no row is left.
    """
    gathered = _Gathered()
    start = 0
    for entry in sets:
        name, spec = split_name(entry)
        source = open_source(spec, split=options.split, name=name)
        own_images = RowImages.of(images, spec)
        wanted = _wanted(source, form, own_images, options, side)
        rows = compress(enumerate(source.scan(_columns(form, own_images))), wanted)
        while batch := list(islice(rows, _BATCH_ROWS)):
            gathered.add(source, start, batch, _made(batch, form, tokenizer, own_images))
        start += len(source)
    return gathered.checked(options, option, side)


def _columns(form: RowForm, images: RowImages) -> tuple[str, ...]:
    return form.columns if images.key is None else (*form.columns, images.key)


def _wanted(
    source: Source, form: RowForm, images: RowImages, options: SequenceOptions, side: Side
) -> NDArray[np.bool_]:
    """Return a mask of the first rows of a source, True at those to read."""
    count = min(len(source), options.max_samples or len(source))
    asked = form.asked if images.key is None else (*form.asked, images.key)
    return side.wanted(lambda: hashes_of(source, count, asked, form.columns), count)


class _Gathered:
    """Sequences and bad rows of all sets so far."""

    def __init__(self) -> None:
        self._sequences = SequenceColumns()
        self._bad: list[BadRow] = []
        self._inert = InertWords()
        self._total = 0
        self._read = array("Q")
        self._sets: dict[str, array[int]] = {}

    def add(
        self,
        source: Source,
        start: int,
        batch: Sequence[tuple[int, Row | Unreadable]],
        rows: Iterable[tuple[int, _MadeRow | RowProblem]],
    ) -> None:
        """Add rows of a source whose first row has the index ``start``."""
        self._total += len(batch)
        of_set = self._sets.setdefault(source.name, array("q"))
        for index, made in rows:
            if isinstance(made, RowProblem):
                self._bad.append(_located(made, source, index))
                continue
            if made.inert:
                self._inert = self._inert.plus(made.inert, source.where(index))
            read = number_of(b"".join(map(_content, made.sequences)))
            for sequence in made.sequences:
                of_set.append(len(self._sequences))
                self._read.append(read)
                self._sequences.add(start + index, sequence)

    def checked(self, options: SequenceOptions, option: str, side: Side) -> LearnedRows:
        """Return all rows.

        Raises:
            DataError: rows are bad (with ``on_bad_row = fail``), or no row is left.
        """
        bad, total, inert = self._bad, self._total, self._inert
        if bad and (options.on_bad_row == "fail" or len(bad) == total):
            raise bad_row_error(bad, total, option, ())
        if bad:
            log.warning("%s", describe_skipped(bad, total, option))
        if not len(self._sequences):
            raise DataError(f"{option}: {side.lacks}")
        if inert.rows:
            log.warning("%s", inert.describe(total, option))
        rows_read = LearnedRows(
            columns=self._sequences.columns(),
            total=total,
            bad=tuple(bad),
            inert=inert,
            sets={
                name: np.array(rows, dtype=np.int64) for name, rows in self._sets.items() if rows
            },
            read=np.array(self._read, dtype=np.uint64),
        )
        log.info("%s: %s", option, rows_read.describe())
        return rows_read


def _content(sequence: LearnedSequence) -> bytes:
    """Return what the model reads of a sequence as bytes."""
    images = "".join(span.image.sha256 for span in sequence.media)
    return sequence.token_ids.astype(np.int32).tobytes() + images.encode()


class _MadeRow(NamedTuple):
    """Sequences of a row, and its control words that are ordinary text."""

    sequences: list[LearnedSequence]
    inert: tuple[str, ...]


def _made(
    batch: Sequence[tuple[int, Row | Unreadable]],
    form: RowForm,
    tokenizer: SpanTokenizer,
    images: RowImages,
) -> Iterator[tuple[int, _MadeRow | RowProblem]]:
    """Yield the index of each row with its sequences or its problem; calls the tokenizer once."""
    texts = [_texts(row, form, images) for _, row in batch]
    all_texts = [text for row in texts if isinstance(row, list) for text in row]
    tokens = (
        with_images(found, text.media, images.reader)
        for text, found in zip(all_texts, tokenizer.tokenize(all_texts), strict=True)
    )
    for (index, row), of_row in zip(batch, texts, strict=True):
        if isinstance(of_row, RowProblem):
            yield index, of_row
            continue
        assert not isinstance(row, Unreadable)
        sequences = _sequences(row, list(islice(tokens, len(of_row))), form)
        if isinstance(sequences, RowProblem):
            yield index, sequences
        else:
            inert = tuple(dict.fromkeys(word for text in of_row for word in text.inert))
            yield index, _MadeRow(sequences, inert)


def _texts(
    row: Row | Unreadable, form: RowForm, images: RowImages
) -> list[LearnedText] | RowProblem:
    if isinstance(row, Unreadable):
        return RowProblem("unreadable", row.reason)
    try:
        texts = list(form.texts(row, images))
        for text in texts:
            check_characters(text.text, form.max_tokens, "the row", "--data.max_length")
    except RowProblem as problem:
        return problem
    return texts


def _sequences(
    row: Row, tokens: Sequence[LearnedTokens | RowProblem], form: RowForm
) -> list[LearnedSequence] | RowProblem:
    usable = []
    for one in tokens:
        if isinstance(one, RowProblem):
            return one
        usable.append(one)
    try:
        return list(form.sequences(row, usable))
    except RowProblem as problem:
        return problem


def _located(problem: RowProblem, source: Source, index: int) -> BadRow:
    return BadRow(source.where(index), problem.kind, problem.reason)
