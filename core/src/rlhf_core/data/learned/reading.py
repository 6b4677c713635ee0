"""Reading of data sets row by row into columns, with every bad row named before any training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from ...batch.trajectory_columns import TrajectoryColumns
from ...errors import DataError
from ...media.reader import ImageReader
from ..chat.control_words import InertWords
from ..forms.form import RowKind
from ..forms.recognizing import formed
from ..prompts import check_characters
from ..row_images import RowImages
from ..rows import BadRow, RowProblem, bad_row_error, describe_skipped
from ..source import Row, Source, Unreadable
from ..sources import open_source
from .images import with_images
from .learned_text import LearnedText
from .options import PromptColumns, SequenceOptions
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


ColumnsT = TypeVar("ColumnsT", bound=PromptColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[ColumnsT]):
    """Way of reading the rows of a command's sets."""

    columns: ColumnsT
    """Columns as the options name them."""
    kinds: tuple[RowKind, ...]
    """Kinds of rows that are read."""
    form: Callable[[ColumnsT], RowForm]
    """Maker of the way from a row to its sequences, from the columns that the rows of a set have."""


def read_rows(
    sets: Sequence[str],
    reading: Reading[ColumnsT],
    tokenizer: SpanTokenizer,
    options: SequenceOptions,
    option: str,
    images: ImageReader | None = None,
) -> LearnedRows:
    """Return the rows of some sets as columns.

    Args:
        sets: files, folders or hub names.
        option: option that names the sets, for messages.
        images: reader of the rows' images; None: the model reads text alone.

    Raises:
        DataError: a set cannot be opened, rows are bad (with ``on_bad_row = fail``), or no row is left.
    """
    gathered = SequenceColumns()
    bad: list[BadRow] = []
    inert = InertWords()
    total = start = 0
    for spec in sets:
        opened = open_source(spec, split=options.split)
        found = formed(opened, reading.columns, reading.kinds, spec=spec, option=option)
        source, form = found.source, reading.form(found.columns)
        limit = options.max_samples or len(source)
        own_images = RowImages.of(images, spec)
        columns = form.columns if own_images.key is None else (*form.columns, own_images.key)
        rows = islice(enumerate(source.scan(columns)), limit)
        while batch := list(islice(rows, _BATCH_ROWS)):
            total += len(batch)
            for index, made in made_rows(batch, form, tokenizer, own_images):
                if isinstance(made, RowProblem):
                    bad.append(_located(made, source, index))
                    continue
                inert = inert.plus(made.inert, source.where(index)) if made.inert else inert
                for sequence in made.sequences:
                    gathered.add(start + index, sequence)
        start += len(source)
    if bad and (options.on_bad_row == "fail" or len(bad) == total):
        raise bad_row_error(bad, total, option, ())
    if bad:
        log.warning("%s", describe_skipped(bad, total, option))
    if not len(gathered):
        raise DataError(f"{option}: expected at least one row, got none")
    if inert.rows:
        log.warning("%s", inert.describe(total, option))
    rows_read = LearnedRows(columns=gathered.columns(), total=total, bad=tuple(bad), inert=inert)
    log.info("%s: %s", option, rows_read.describe())
    return rows_read


class MadeRow(NamedTuple):
    """Sequences of a row, and its control words that are ordinary text."""

    sequences: list[LearnedSequence]
    inert: tuple[str, ...]


def made_rows(
    batch: Sequence[tuple[int, Row | Unreadable]],
    form: RowForm,
    tokenizer: SpanTokenizer,
    images: RowImages,
) -> Iterator[tuple[int, MadeRow | RowProblem]]:
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
            yield index, MadeRow(sequences, inert)


def _texts(
    row: Row | Unreadable, form: RowForm, images: RowImages
) -> list[LearnedText] | RowProblem:
    if isinstance(row, Unreadable):
        return RowProblem(row.kind, row.reason)
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
