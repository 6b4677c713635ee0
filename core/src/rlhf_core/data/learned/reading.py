"""Reading of data sets row by row into columns, with every bad row named before any training."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import compress, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...batch.trajectory_columns import TrajectoryColumns
from ...component import Config
from ...errors import DataError
from ...media.reader import ImageReader
from ..chat.control_words import InertWords
from ..held_out.sides import ALL, Hashes, Side, hashes_of, number_of
from ..prompts import check_characters
from ..row_images import RowImages, SeenRows, check_seen
from ..rows import BadRow, RowProblem, bad_row_error, describe_skipped
from ..source import Row, Source, Unreadable
from ..sources import open_source, split_name
from .images import with_images
from .learned_text import LearnedText
from .options import SequenceOptions
from .sequences import LearnedSequence, SequenceColumns
from .sets.columns_on_disk import StoredColumns
from .sets.token_cache import EntryWriter, TokenCache, folder_of, key_of
from .tokens import LearnedTokens, SpanTokenizer

log = logging.getLogger(__name__)

_BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSet:
    """Sequences of one set among those of all."""

    name: str
    first: int
    """Index of its first sequence."""
    end: int
    """Index behind its last one."""


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
    sets: tuple[LearnedSet, ...]
    """The sets, in their order."""
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
    columns: Config,
    tokenizer: SpanTokenizer,
    options: SequenceOptions,
    option: str,
    images: ImageReader | None = None,
    side: Side = ALL,
) -> LearnedRows:
    """Return the rows of some sets as columns: in memory, or in files of the folder ``options.cache``, which are mapped
    into memory. Rows with images are in memory, since the images are in a store of the run's own.

    Args:
        sets: files, folders or hub names, each as it is or as ``NAME=PATH``.
        columns: options with the names of the columns, of which ``form`` was made.
        option: option that names the sets, for messages.
        images: reader of the rows' images; None: the model reads text alone.
        side: rows to read where a share of them is held out.

    Raises:
        DataError: a set cannot be opened, rows are bad (with ``on_bad_row = fail``), or no row is left.
    """
    folder = folder_of(options.cache) if images is None else None
    if folder is None:
        gathered = _Gathered()
        _gather(gathered, sets, form, tokenizer, options, images, side)
        gathered.check(options, option, side)
        check_seen(images, option, gathered.seen)
        return gathered.rows(option)
    words = type(form).__name__
    key = key_of(
        sets, columns, options, tokenizer.renderer, form=words, eos=tokenizer.eos, side=side
    )
    entry = TokenCache(folder, key)
    if found := entry.find():
        stored, account = found
        gathered = _Gathered.of(account)
        gathered.check(options, option, side)
        log.info("%s: the tokens of these rows are those of %s", option, folder / key)
        return gathered.rows(option, stored)
    writer = entry.writer()
    try:
        gathered = _Gathered(writer)
        _gather(gathered, sets, form, tokenizer, options, images, side)
        gathered.check(options, option, side)
    except BaseException:
        writer.discard()
        raise
    return gathered.rows(option, writer.keep(gathered.account()))


def _gather(
    gathered: _Gathered,
    sets: Sequence[str],
    form: RowForm,
    tokenizer: SpanTokenizer,
    options: SequenceOptions,
    images: ImageReader | None,
    side: Side,
) -> None:
    """Read the rows of all sets, a batch at a time."""
    start = 0
    for entry in sets:
        name, spec = split_name(entry)
        source = open_source(spec, split=options.split, name=name)
        own_images = RowImages.of(images, spec)
        wanted = _wanted(source, form, own_images, options, side)
        rows = compress(enumerate(source.scan((*form.columns, *own_images.columns))), wanted)
        gathered.begin(source)
        while batch := list(islice(rows, _BATCH_ROWS)):
            gathered.add(source, start, batch, _made(batch, form, tokenizer, own_images))
        start += len(source)


def _wanted(
    source: Source, form: RowForm, images: RowImages, options: SequenceOptions, side: Side
) -> NDArray[np.bool_]:
    """Return a mask of the first rows of a source, True at those to read."""
    count = min(len(source), options.max_samples or len(source))
    asked = (*form.asked, *images.columns)
    return side.wanted(lambda: hashes_of(source, count, asked, form.columns), count)


class _Gathered:
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
        self._total = 0
        self._sets: list[LearnedSet] = []
        self.seen: list[SeenRows] = []
        """Number of images of each set, of those that were read here."""

    @classmethod
    def of(cls, account: Mapping[str, Any]) -> _Gathered:
        """Return what ``account`` described, without the sequences."""
        found = cls()
        found._total = account["total"]
        found._bad = [BadRow(**row) for row in account["bad"]]
        rows, words, first = account["inert"]
        found._inert = InertWords(rows, tuple(words), first)
        found._sets = [LearnedSet(**one) for one in account["sets"]]
        return found

    def account(self) -> dict[str, Any]:
        """Return all but the sequences as values that JSON carries."""
        inert = self._inert
        return {
            "total": self._total,
            "bad": [asdict(row) for row in self._bad],
            "inert": [inert.rows, inert.words, inert.first],
            "sets": [asdict(one) for one in self._sets],
        }

    def begin(self, source: Source) -> None:
        """Begin a set, to which the rows that follow belong."""
        count = self._written + len(self._sequences)
        self._sets.append(LearnedSet(name=source.name, first=count, end=count))
        self.seen.append(SeenRows(source, 0))

    def add(
        self,
        source: Source,
        start: int,
        batch: Sequence[tuple[int, Row | Unreadable]],
        rows: Iterable[tuple[int, _MadeRow | RowProblem]],
    ) -> None:
        """Add rows of a source whose first row has the index ``start``."""
        self._total += len(batch)
        for index, made in rows:
            if isinstance(made, RowProblem):
                self._bad.append(_located(made, source, index))
                continue
            if made.inert:
                self._inert = self._inert.plus(made.inert, source.where(index))
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
            raise bad_row_error(bad, total, option, ())
        if bad:
            log.warning("%s", describe_skipped(bad, total, option))
        if not self._sets or not self._sets[-1].end:
            raise DataError(f"{option}: {side.lacks}")
        if inert.rows:
            log.warning("%s", inert.describe(total, option))

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


class _MadeRow(NamedTuple):
    """Sequences of a row, and its control words that are ordinary text."""

    sequences: list[LearnedSequence]
    inert: tuple[str, ...]
    num_images: int
    """Number of its images, those behind a cut too."""


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
            yield index, _MadeRow(sequences, inert, sum(len(text.media) for text in of_row))


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
