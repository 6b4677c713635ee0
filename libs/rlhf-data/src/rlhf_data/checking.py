"""Check of every row of a data set against the needs of a run, for ``rlhf data check``."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import value_at
from rlhf_core.media.loader import Intake, MediaLoader

from .chat.control_words import InertWords
from .chat.renderer import TokenizerRenderer
from .checked.structure import AnyColumns, read_structure
from .forms.form import DataForm, RowKind
from .forms.recognizing import FormedSet, formed
from .forms.unread import said_of_unread
from .learned.conversations import Conversations, TextPieces
from .learned.labeled import LabeledAnswers
from .learned.options import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    PromptColumns,
    SequenceOptions,
    StepLabelColumns,
)
from .learned.pairs import Pairs
from .learned.reading import RowForm, made_rows
from .learned.sets.gathered import MadeRow
from .learned.steps import StepLabels
from .learned.tokens import SpanTokenizer
from .prompts import length_problem, read_prompt, tokenize_rows
from .row_images import RowImages, media_of
from .rows import BadRow, Prompt, PromptFormat, RowProblem, check_text
from .source import Row, Source, Unreadable, filled_columns
from .turn_order import TurnOrder, out_of_turn

_NO_LIMIT = 2**31 - 1
ColumnsT = TypeVar("ColumnsT", bound=PromptColumns)

_BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """Conditions that rows have to satisfy."""

    format: PromptFormat
    columns: AnyColumns = field(default_factory=AnyColumns)
    """Names of columns, and the form of the rows if the user names one."""
    label_key: str | None = None
    """Name of a column that every row must have, for its reward."""
    id_key: str | None = None
    """Name of a column whose values must not repeat."""
    renderer: TokenizerRenderer | None = None
    """Renderer that tries the chat template and counts tokens; without a renderer lengths are in characters."""
    max_tokens: int | None = None
    max_characters: int | None = None
    loader: MediaLoader | None = None
    """Reader of images, those of ``image_key`` and those within messages; None: a row with an image has a problem."""
    image_key: str | None = None
    """Column of images, as ``RowImages`` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """Findings in one source."""

    total: int
    bad: tuple[BadRow, ...]
    """Problems of rows; a row may have several."""
    lengths: NDArray[np.int64]
    """Lengths of the usable prompts, in tokens, or in characters without a renderer."""
    duplicates: tuple[tuple[str, str], ...]
    """Places of rows whose prompt occurred before, each with the place of the first occurrence."""
    inert: InertWords = field(default_factory=InertWords)
    """Count of the rows with control words, which a run reads as ordinary text; none without a renderer."""
    order: TurnOrder = field(default_factory=TurnOrder)
    """Count of the usable rows whose roles do not alternate."""
    form: DataForm | None = None
    """Form of the rows; None where none was recognized."""
    unread: str = ""
    """Columns of the first rows that nothing reads, in words; empty: there are none."""
    has_images: bool = False
    num_read_anyway: int = 0
    """Number of bad rows that a run reads all the same, since only their label or id is bad."""

    @property
    def num_bad(self) -> int:
        """Number of rows that cannot be used."""
        return len({row.where for row in self.bad})


def check_source(
    source: Source, expected: Expectations, folder: Path | None = None
) -> SourceReport:
    """Return the report on a source: all problems of its rows, lengths of prompts, and repeated prompts.

    Args:
        folder: start of relative paths of images; None: where the process was started.

    Raises:
        DataError: the user names a form that does not exist here, or chats have no chat template.
    """
    found = formed(source, expected.columns, tuple(RowKind), spec=source.name, says=False)
    source, reader = found.source, SetReader(found, expected)
    images = RowImages(
        loader=expected.loader, key=expected.image_key, folder=folder, intake=Intake(keeps=False)
    )
    bad: list[BadRow] = []
    lengths = array("q")
    seen: dict[bytes, int] = {}
    ids: dict[object, int] = {}
    duplicates: list[tuple[str, str]] = []
    inert, order, has_images, num_read_anyway = InertWords(), TurnOrder(), False, 0
    rows = enumerate(source.scan())
    while batch := list(islice(rows, _BATCH_ROWS)):
        for (index, row), measured in zip(batch, reader.measured(batch, images), strict=True):
            where = source.where(index)
            prompt, length = measured.prompt, measured.length
            inert = inert.plus(measured.inert, where)
            problems = [*_prompt_problems(prompt, length, expected, is_prompt=reader.is_of_prompts)]
            by_request = [
                *_column_problems(row, expected),
                *_repeated_id(row, ids, index, source, expected.id_key),
            ]
            num_read_anyway += bool(by_request and not problems)
            problems += by_request
            bad += [BadRow(where, problem.kind, problem.reason) for problem in problems]
            if problems or isinstance(prompt, RowProblem):
                continue
            lengths.append(length)
            order = order.plus(measured.out_of_turn, where)
            has_images = has_images or bool(media_of(prompt))
            first = seen.setdefault(_digest(prompt), index)
            if first != index:
                duplicates.append((where, source.where(first)))
    return SourceReport(
        total=len(source),
        bad=tuple(bad),
        lengths=np.array(lengths, dtype=np.int64),
        duplicates=tuple(duplicates),
        inert=inert,
        order=order,
        form=found.form,
        unread=said_of_unread(found.found.unread, found.columns),
        has_images=has_images,
        num_read_anyway=num_read_anyway,
    )


class _Measured(NamedTuple):
    """A prompt or a row's problem, the prompt's length, its control words that are ordinary text, and its first message
    that is out of turn."""

    prompt: Prompt | RowProblem
    length: int
    inert: tuple[str, ...] = ()
    out_of_turn: str | None = None


class SetReader:
    """Reader of the rows of one set, by their kind.

    Args:
        found: the set with the form of its rows.
    """

    def __init__(self, found: FormedSet[AnyColumns], expected: Expectations) -> None:
        columns, renderer = found.columns, expected.renderer
        self._kind = RowKind.PROMPTS if found.form is None else found.form.kind
        if columns.messages_key is not None and found.form is None:
            self._kind = RowKind.CONVERSATIONS
        self._columns = columns
        self._format = replace(expected.format, prompt_key=columns.prompt_key)
        self._expected = expected
        self._learned: LearnedReader | None = None
        if renderer is not None and self._kind is not RowKind.PROMPTS:
            self._learned = LearnedReader(self._kind, columns, renderer, expected.max_tokens)

    @property
    def is_of_prompts(self) -> bool:
        """Whether the rows are prompts, and nothing to learn from."""
        return self._kind is RowKind.PROMPTS

    def measured(
        self, batch: list[tuple[int, Row | Unreadable]], images: RowImages
    ) -> Iterator[_Measured]:
        """Yield prompts with their lengths; a chat that the template refuses is a problem."""
        prompts = [self.read(row, images) for _, row in batch]
        renderer = self._expected.renderer
        if self._learned is not None:
            for prompt, made in zip(prompts, self._learned.of(batch, images), strict=True):
                if isinstance(made, RowProblem):
                    yield _Measured(made, 0)
                else:
                    yield _Measured(prompt, longest(made), made.inert, made.out_of_turn)
            return
        if renderer is None:
            for prompt in prompts:
                odd = out_of_turn(prompt) if isinstance(prompt, tuple) else None
                yield _Measured(prompt, _characters(prompt), out_of_turn=odd)
            return
        found = tokenize_rows(batch, self._format, renderer, self._expected.max_tokens, images)
        for prompt, tokens in zip(prompts, found, strict=True):
            if isinstance(tokens, RowProblem):
                yield _Measured(tokens, 0)
            else:
                yield _Measured(prompt, tokens.length, tokens.inert, tokens.out_of_turn)

    def read(self, row: Row | Unreadable, images: RowImages) -> Prompt | RowProblem:
        """Return the prompt of a row, or the conversation or text that is learned, or the row's problem."""
        if self._kind is RowKind.PROMPTS or isinstance(row, Unreadable):
            return read_prompt(row, self._format, images)
        try:
            return read_structure(row, self._kind, self._columns, self._format, images)
        except RowProblem as problem:
            return problem


def _prompt_problems(
    prompt: Prompt | RowProblem, length: int, expected: Expectations, *, is_prompt: bool
) -> Iterator[RowProblem]:
    if isinstance(prompt, RowProblem):
        yield prompt
        return
    if is_prompt and expected.renderer is not None and expected.max_tokens is not None:
        problem = length_problem(length, expected.max_tokens)
        if problem is not None:
            yield problem
    characters = _characters(prompt)
    if expected.max_characters is not None and characters > expected.max_characters:
        yield RowProblem(
            "too long",
            f"the prompt has {characters} characters, --max-prompt-characters allows {expected.max_characters}",
        )


def _column_problems(row: Row | Unreadable, expected: Expectations) -> Iterator[RowProblem]:
    key = expected.label_key
    if key is None or isinstance(row, Unreadable):
        return
    try:
        label = value_at(row, key)
    except KeyError:
        yield RowProblem(
            "missing label",
            f"expected a column {key!r}; the row has {', '.join(filled_columns(row))}",
        )
        return
    if label is None:
        yield RowProblem("missing label", f"column {key!r} is null")
    elif isinstance(label, str):
        try:
            check_text(label, f"column {key!r}")
        except RowProblem as problem:
            yield problem


def _repeated_id(
    row: Row | Unreadable, ids: dict[object, int], index: int, source: Source, key: str | None
) -> list[RowProblem]:
    if key is None or isinstance(row, Unreadable):
        return []
    if row.get(key) is None:
        return [RowProblem("missing id", f"expected a value in column {key!r}, got none")]
    value = row[key] if isinstance(row[key], str | int) else repr(row[key])
    first = ids.setdefault(value, index)
    if first == index:
        return []
    return [RowProblem("repeated id", f"{source.where(first)} has {key} {value!r} too")]


def _characters(prompt: Prompt | RowProblem) -> int:
    if isinstance(prompt, RowProblem):
        return 0
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(str(message.get("content", ""))) for message in prompt)


def _digest(prompt: Prompt) -> bytes:
    text = prompt if isinstance(prompt, str) else repr(prompt)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


class LearnedReader:
    """Reader of rows to learn from, by the kind that they are of.

    Args:
        max_tokens: tokens of the longest sequence; None: any number.
    """

    def __init__(
        self,
        kind: RowKind,
        columns: AnyColumns,
        renderer: TokenizerRenderer,
        max_tokens: int | None,
    ) -> None:
        options = SequenceOptions(max_length=max_tokens or _NO_LIMIT)
        self._form = _form_of(kind, columns, options, renderer)
        self._tokenizer = SpanTokenizer(renderer, renderer.tokenizer.eos_token_id or 0)

    def of(
        self, batch: Sequence[tuple[int, Row | Unreadable]], images: RowImages
    ) -> Iterator[MadeRow | RowProblem]:
        """Yield the sequences of each row, or the row's problem.

        Raises:
            DataError: the tokenizer has no chat template, or does not tell the characters of its tokens.
        """
        return (made for _, made in made_rows(batch, self._form, self._tokenizer, images))


def longest(made: MadeRow) -> int:
    """Return the number of tokens of the longest sequence of a row."""
    return max(len(sequence.token_ids) for sequence in made.sequences)


def _form_of(
    kind: RowKind, columns: AnyColumns, options: SequenceOptions, renderer: TokenizerRenderer
) -> RowForm:
    match kind:
        case RowKind.TEXTS:
            return TextPieces(columns.text_key or "text", options, renderer)
        case RowKind.PAIRS:
            return Pairs(_only(columns, PairColumns), options, renderer)
        case RowKind.JUDGED:
            return LabeledAnswers(_only(columns, LabeledColumns), options, renderer)
        case RowKind.STEPS:
            return StepLabels(_only(columns, StepLabelColumns), options, renderer)
    return Conversations(_only(columns, ConversationColumns), options, renderer)


def _only(columns: AnyColumns, wanted: type[ColumnsT]) -> ColumnsT:
    """Return the columns that a command of one kind has."""
    return wanted(**{name: getattr(columns, name) for name in wanted.model_fields})
