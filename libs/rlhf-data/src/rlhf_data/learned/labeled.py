"""Answers that were judged one by one: a label for each, as KTO learns from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..chat.renderer import TokenizerRenderer
from ..forms.chats import truth_of
from ..forms.form import RowKind
from ..row_images import RowImages
from ..rows import RowProblem
from ..source import Row
from .conversations import Conversations
from .learned_text import LearnedText
from .messages import value_of
from .options import LabeledColumns, SequenceOptions
from .row_loader import RowLoader
from .sequences import LearnedSequence
from .tokens import LearnedTokens


class LabeledAnswers:
    """``RowForm`` of answers with labels."""

    def __init__(
        self, columns: LabeledColumns, options: SequenceOptions, renderer: TokenizerRenderer
    ) -> None:
        self._conversations = Conversations(columns, options, renderer)
        self._label_key = columns.label_key
        self.columns = (*self._conversations.columns, columns.label_key)
        self.asked = self._conversations.asked
        self.max_tokens = self._conversations.max_tokens

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        label_of(row, self._label_key)
        return self._conversations.texts(row, images)

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        label = float(label_of(row, self._label_key))
        return [replace(one, reward=label) for one in self._conversations.sequences(row, tokens)]


def label_of(row: Row, key: str) -> bool:
    """Return whether a row's answer is good.

    Raises:
        RowProblem: the column is missing, or says neither true nor false.
    """
    label = value_of(row, key, "label_key")
    truth = truth_of(label)
    if truth is None:
        raise RowProblem(
            "bad label", f"column {key!r}: expected true or false, or 1 or 0; got {label!r:.60}"
        )
    return truth


load_labeled_answers = RowLoader(LabeledAnswers, (RowKind.JUDGED,))
"""Reads answers as sequences whose ``reward`` is 1 for a good answer and 0 for another.

The action mask marks the answer: the response, or the last assistant turn of a conversation. A label that is neither
true nor false is a bad row.
"""
