"""Solutions with a label for each step, as process reward models learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ..chat.renderer import TokenizerRenderer
from ..forms.chats import as_list, truth_of
from ..forms.form import RowKind
from ..prompts import check_plain
from ..row_images import RowImages
from ..rows import RowProblem, check_text
from ..source import Row, is_list
from .conversations import AnswerTexts
from .learned_text import LearnedText, Span, plain_text
from .messages import text_of, value_of
from .options import SequenceOptions, StepLabelColumns
from .row_loader import RowLoader
from .sequences import LearnedSequence, cut_to, max_tokens_of
from .tokens import LearnedTokens


class StepLabels:
    """``RowForm`` of solutions with labels of their steps."""

    def __init__(
        self, columns: StepLabelColumns, options: SequenceOptions, renderer: TokenizerRenderer
    ) -> None:
        self._columns = columns
        self._options = options
        self._renderer = renderer
        # The separator is the user's own, whatever else it is to the tokenizer.
        self._answers = AnswerTexts(
            columns, renderer, renderer.texts.words.names(columns.separator)
        )
        self.max_tokens = max_tokens_of(options)

    @property
    def columns(self) -> tuple[str, ...]:
        names = self._columns
        if names.text_key is not None:
            return (names.text_key, names.labels_key)
        tools = () if names.tools_key is None else (names.tools_key,)
        return (*self._answers.format.columns, names.steps_key, names.labels_key, *tools)

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of those that ask; prompt and steps in one text are one question."""
        key = self._columns.text_key
        return self._answers.format.columns if key is None else (key,)

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        """Return prompt and steps, with each separator as a span."""
        names = self._columns
        count = len(labels_of(row, names.labels_key))
        if names.text_key is not None:
            text = text_of(row, names.text_key, "text_key")
            check_plain(row, self._renderer)
            images.prompt(row, text)  # refuses images, which have no place in a plain text
            made = plain_text(self._answers.policy_text(text))
            ends = _ends_of(text, names.separator)
        else:
            steps = [step + names.separator for step in steps_of(row, names.steps_key)]
            made = self._answers.answer(row, "".join(steps), names.tools_key, images)
            start = _place_of("".join(steps), made)
            ends = [start + length for length in accumulate(map(len, steps))]
        if len(ends) != count:
            raise RowProblem(
                "step counts",
                f"expected a label for each of the {len(ends)} steps; column {names.labels_key!r} has {count}",
            )
        spans = tuple(Span(end - len(names.separator), end) for end in ends)
        return [replace(made, spans=spans, is_ended=False)]

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        (one,) = tokens
        if one.overhang[:, 1].any():
            number = int(np.flatnonzero(one.overhang[:, 1])[0]) + 1
            raise RowProblem(
                "separator",
                f"step {number}: the last token of --data.separator {self._columns.separator!r} holds the beginning of "
                "the next step too. Choose a separator that is a token of its own, such as an added one",
            )
        # Of several tokens of a separator the last has seen the whole.
        turns = np.stack([one.turns[:, 1] - 1, one.turns[:, 1]], axis=1)  # (K, 2)
        sequence = cut_to(replace(one, turns=turns), self._options)
        found = labels_of(row, self._columns.labels_key)
        labels = np.array(found[: len(sequence.turns)], dtype=np.float32)
        return [replace(sequence, turn_rewards=labels)]


def steps_of(row: Row, key: str) -> list[str]:
    """Return the steps of a row.

    Raises:
        RowProblem: the column has no list of texts that can be used.
    """
    steps = _list_of(row, key, "steps_key", "steps")
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, str):
            raise RowProblem(
                "wrong type", f"step {number}: expected text, got {type(step).__name__}"
            )
        check_text(step, f"step {number}")
    return steps


def labels_of(row: Row, key: str) -> list[float]:
    """Return the labels of a row's steps, from 0 to 1.

    Raises:
        RowProblem: the column has no list of such labels, or an empty one.
    """
    given = _list_of(row, key, "labels_key", "labels")
    # A text that says neither true nor false stays as it is, for the message.
    labels: list[Any] = [one if (truth := truth_of(one)) is None else truth for one in given]
    if not labels:
        raise RowProblem("no steps", f"column {key!r}: expected a label at least, got none")
    for number, label in enumerate(labels, start=1):
        # bool is an int, and NaN is not between 0 and 1.
        if not isinstance(label, int | float) or not 0 <= label <= 1:
            raise RowProblem(
                "bad label",
                f"label {number}: expected true, false or a number from 0 to 1; got {label!r:.60}",
            )
    return [float(label) for label in labels]


def _list_of(row: Row, key: str, option: str, what: str) -> list[Any]:
    """Return the list of a column, which may be JSON text: cells of CSV are text.

    Raises:
        RowProblem: the column has no list.
    """
    value = as_list(value_of(row, key, option))
    if not is_list(value):
        way = ", which is no JSON; write the list with json.dumps" if isinstance(value, str) else ""
        raise RowProblem(
            "wrong type",
            f"column {key!r}: expected a list of {what}, got {type(value).__name__}{way}",
        )
    return list(value)


def _ends_of(text: str, separator: str) -> list[int]:
    """Return the character after each separator in a text."""
    ends, place = [], text.find(separator)
    while place >= 0:
        ends.append(place + len(separator))
        place = text.find(separator, ends[-1])
    return ends


def _place_of(solution: str, made: LearnedText) -> int:
    """Return where the steps begin.

    Raises:
        RowProblem: the chat template does not show them as they are.
    """
    (span,) = made.spans
    place = made.text.find(solution, *span)
    if place < 0:
        raise RowProblem(
            "changed by the template",
            "the chat template does not show the steps as they are. If it trims answers, choose a --data.separator "
            "that is not blank",
        )
    return place


load_step_labels = RowLoader(StepLabels, (RowKind.STEPS,))
"""Reads solutions as sequences in which each step is a turn of one token, the last of the separator behind it.

At this token a process reward model predicts the step's label, ``turn_rewards``: 1 for a good step, 0 for a bad one.
"""
