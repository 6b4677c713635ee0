"""Rows to learn from as a model of the user's reads them: by its chat template, in its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..chat.renderer import TokenizerRenderer
from ..forms.form import RowKind
from ..learned.conversations import Conversations, TextPieces
from ..learned.labeled import LabeledAnswers
from ..learned.options import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    PromptColumns,
    SequenceOptions,
    StepLabelColumns,
)
from ..learned.pairs import Pairs
from ..learned.reading import RowForm, made_rows
from ..learned.sets.gathered import MadeRow
from ..learned.steps import StepLabels
from ..learned.tokens import SpanTokenizer
from ..row_images import RowImages
from ..rows import RowProblem
from ..source import Row, Unreadable
from .structure import AnyColumns

_NO_LIMIT = 2**31 - 1

ColumnsT = TypeVar("ColumnsT", bound=PromptColumns)


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
