"""Reading of data sets row by row into columns, with every bad row named before any training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, islice
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf_config.checks.data_files import split_name
from rlhf_core.media.reader import ImageReader
from rlhf_core.storage.writing import writing

from ..chat.template.pieces import LEARNED_FIELDS
from ..files.pace import with_progress
from ..forms.form import RowKind
from ..forms.recognizing import formed
from ..held_out.sides import ALL, Side, hashes_of
from ..prompts import check_characters
from ..row_images import RowImages, check_seen
from ..rows import RowProblem
from ..source import Row, Source, Unreadable, row_error
from ..sources import open_source
from .images import with_images
from .learned_text import LearnedText
from .options import PromptColumns, SequenceOptions
from .sequences import LearnedSequence
from .sets.gathered import Gathered, LearnedRows, MadeRow
from .sets.token_cache import EntryWriter, TokenCache, folder_of, key_of
from .tokens import LearnedTokens, RowTokenizer
from .weights import check_row

log = logging.getLogger(__name__)

_BATCH_ROWS = 1000


class RowForm(Protocol):
    """Way from a row to its sequences: its texts, which are tokenized with those of other rows, then the rest."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read."""

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of those that ask, and with the same values make rows fall on the same side of a split."""

    @property
    def max_tokens(self) -> int | None:
        """Largest number of tokens of a text; None: a longer one is cut."""

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        """Return the texts of a row.

        Raises:
            RowProblem: the row, or an image of it, cannot be used.
        """

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        """Return the sequences of a row from the tokens of its texts, in the order of sample and segment.

        Raises:
            RowProblem: the row cannot be used.
        """


ColumnsT = TypeVar("ColumnsT", bound=PromptColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[ColumnsT]):
    """Way of reading the rows of a command's sets."""

    columns: ColumnsT
    """Columns as the options name them."""
    kinds: tuple[RowKind, ...]
    form: Callable[[ColumnsT], RowForm]
    """Maker of the way from a row to its sequences, from the columns that the rows of a set have."""
    also: tuple[str, ...] = ()
    """Texts that decide about the tokens beside columns, options and the tokenizer, such as a second template."""


def read_rows(
    sets: Sequence[str],
    reading: Reading[ColumnsT],
    tokenizer: RowTokenizer,
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
    gather = partial(_gather, sets, reading, tokenizer, options, option, images, side)
    folder = folder_of(options.cache) if images is None else None
    if folder is None:
        gathered = gather()
        check_seen(images, option, gathered.seen)
        return gathered.rows(option)
    kinds = ",".join(reading.kinds)
    key = key_of(
        sets,
        reading.columns,
        options,
        tokenizer.renderer,
        form=kinds,
        eos=tokenizer.eos,
        side=side,
        also=reading.also,
    )
    entry = TokenCache(folder, key)
    if found := entry.find():
        stored, account = found
        gathered = Gathered.of(account)
        gathered.check(options, option, side)
        if not side.is_evaluated:
            gathered.say_forms(option, [split_name(one)[1] for one in sets], reading.columns)
            gathered.say_unread(option)
        log.info("%s: the tokens of these rows are those of %s", option, folder / key)
        return gathered.rows(option, stored)
    advice = "Set --data.cache to a folder with room, or off"
    with writing(f"{folder}, the cache of tokens,", advice=advice):
        writer = entry.writer()
        try:
            gathered = gather(writer)
            if not side.is_evaluated:
                gathered.say_unread(option)
            stored = writer.keep(gathered.account())
        except BaseException:
            writer.discard()
            raise
    return gathered.rows(option, stored)


def _gather(
    sets: Sequence[str],
    reading: Reading[ColumnsT],
    tokenizer: RowTokenizer,
    options: SequenceOptions,
    option: str,
    images: ImageReader | None,
    side: Side,
    writer: EntryWriter | None = None,
) -> Gathered:
    """Return the rows of all sets, which are read a batch at a time."""
    gathered, start = Gathered(writer), 0
    for entry in sets:
        name, spec = split_name(entry)
        opened = open_source(spec, split=options.split, name=name)
        # Of rows that a share holds out of training rows, those say the form.
        says = not side.is_evaluated
        found = formed(opened, reading.columns, reading.kinds, spec=spec, option=option, says=says)
        source, form = found.source, reading.form(found.columns)
        own_images = RowImages.of(images, spec)
        wanted = _wanted(source, form, own_images, options, side)
        read = enumerate(source.scan((*form.columns, *own_images.columns, *LEARNED_FIELDS)))
        rows = with_progress(compress(read, wanted), int(wanted.sum()), source.name)
        gathered.begin(found)
        while batch := list(islice(rows, _BATCH_ROWS)):
            made = made_rows(batch, form, tokenizer, own_images)
            gathered.add(source, start, batch, noted(made, source, form, own_images))
        start += len(source)
    gathered.check(options, option, side)
    return gathered


def _wanted(
    source: Source, form: RowForm, images: RowImages, options: SequenceOptions, side: Side
) -> NDArray[np.bool_]:
    """Return a mask of the first rows of a source, True at those to read."""
    count = min(len(source), options.max_samples or len(source))
    asked = (*form.asked, *images.columns)
    return side.wanted(lambda: hashes_of(source, count, asked, form.columns), count)


def made_rows(
    batch: Sequence[tuple[int, Row | Unreadable]],
    form: RowForm,
    tokenizer: RowTokenizer,
    images: RowImages,
) -> Iterator[tuple[int, MadeRow | RowProblem]]:
    """Yield the index of each row with its sequences or its problem; calls the tokenizer once."""
    texts = [_texts(row, form, images) for _, row in batch]
    all_texts = [text for row in texts if isinstance(row, list) for text in row]
    tokens = (
        with_images(found, text.media, images.reader)
        for text, found in zip(all_texts, tokenizer.tokenize(all_texts), strict=True)
    )
    read_as_text = tokenizer.renderer.texts.words.read_as_text
    for (index, row), of_row in zip(batch, texts, strict=True):
        if isinstance(of_row, RowProblem):
            yield index, of_row
            continue
        assert not isinstance(row, Unreadable)
        sequences = _sequences(row, list(islice(tokens, len(of_row))), form)
        if isinstance(sequences, RowProblem):
            yield index, sequences
        else:
            # The first text has the prompt; a second one may be another template's, whose marks are its own.
            inert = read_as_text(of_row[0].text, (word for text in of_row for word in text.inert))
            odd = next(filter(None, (text.out_of_turn for text in of_row)), None)
            num_images = sum(len(text.media) for text in of_row)
            yield index, MadeRow(sequences, inert, num_images, odd)


def noted(
    rows: Iterable[tuple[int, MadeRow | RowProblem]],
    source: Source,
    form: RowForm,
    images: RowImages,
) -> Iterator[tuple[int, MadeRow | RowProblem]]:
    """Yield the rows of a source; images that are taken in when they are used are noted with their rows."""
    on_use = None if images.reader is None else images.reader.on_use
    keeping = images.keeping()

    def take(index: int) -> str:
        try:
            form.texts(source.row(index), keeping)
        except RowProblem as problem:
            raise row_error(source.where(index), problem) from problem
        return source.where(index)

    for index, made in rows:
        if on_use is not None and isinstance(made, MadeRow):
            for sequence in made.sequences:
                on_use.note([span.image for span in sequence.media], take, index)
        yield index, made


def _texts(
    row: Row | Unreadable, form: RowForm, images: RowImages
) -> list[LearnedText] | RowProblem:
    if isinstance(row, Unreadable):
        return RowProblem(row.kind, row.reason)
    try:
        check_row(row, form.columns)
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
