"""Conversations in two renderings, as a student and its teacher read them, with the same tokens to learn in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlhf_core.errors import DataError
from rlhf_core.media.reader import ImageReader

from ...chat.renderer import TokenizerRenderer
from ...held_out.sides import ALL, Side
from ...row_images import RowImages
from ...rows import RowProblem
from ...source import Row
from ..conversations import IMITATED, Conversations
from ..learned_text import LearnedText
from ..options import ConversationColumns, SequenceOptions
from ..reading import Reading, read_rows
from ..sequences import LearnedSequence, cut_to
from ..sets.gathered import LearnedRows
from ..sets.token_cache import tokenizer_content
from ..tokens import LearnedTokens, SpanTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRendering:
    """The way in which another model reads the same conversations."""

    renderer: TokenizerRenderer
    """Renderer by the other model's chat template; its tokens are those of the run's tokenizer."""
    system_prompt: str | None
    """Message before each conversation, in the place of ``data.system_prompt``; None: none."""
    options: str
    """Options that ask for this rendering, for messages."""


def load_renderings(
    sets: Sequence[str],
    columns: ConversationColumns,
    options: SequenceOptions,
    renderer: TokenizerRenderer,
    *,
    other: OtherRendering,
    eos: int,
    option: str = "data.train",
    images: ImageReader | None = None,
    side: Side = ALL,
) -> LearnedRows:
    """Return conversations as two sequences each: sequence 2 i is the rendering of ``load_conversations``, 2 i + 1 the
    other one.

    Both have the same learned tokens, but for the one that ends a turn, which is each rendering's own. Where rows are
    cut, both lose the same learned tokens. ``uid.sample`` is 0 and 1. The other arguments and errors are those of
    ``load_conversations``; a row whose answers have other tokens in the other rendering is bad.

    Raises:
        DataError: as from ``load_conversations``, or the rows are plain texts, or have images.
    """
    if images is not None:
        raise DataError(
            f"{other.options}: expected conversations without images, which have one rendering",
            code="config/rendering-of-images",
        )

    def form(found: ConversationColumns) -> TwoRenderings:
        if found.text_key is not None:
            raise DataError(
                f"{other.options}: expected conversations; {option} has plain text (column {found.text_key!r:.80}), "
                "which no chat template renders. Leave these options out",
                code="data/plain-text",
            )
        return TwoRenderings(found, options, renderer, other)

    reading = Reading(
        columns=columns,
        kinds=IMITATED,
        form=form,
        also=(*tokenizer_content(other.renderer, eos), repr(other.system_prompt)),
    )
    tokenizer = _TwoTokenizers(SpanTokenizer(renderer, eos), SpanTokenizer(other.renderer, eos))
    return read_rows(sets, reading, tokenizer, options, option, images, side)


class _TwoTokenizers:
    """``RowTokenizer`` of texts of which every second one is of the other rendering."""

    def __init__(self, own: SpanTokenizer, other: SpanTokenizer) -> None:
        self._both = own, other
        self.renderer, self.eos = own.renderer, own.eos

    def tokenize(self, texts: Sequence[LearnedText]) -> list[LearnedTokens | RowProblem]:
        found = (one.tokenize(texts[start::2]) for start, one in enumerate(self._both))
        return [tokens for pair in zip(*found, strict=True) for tokens in pair]


class TwoRenderings:
    """``RowForm`` of conversations in two renderings."""

    def __init__(
        self,
        columns: ConversationColumns,
        options: SequenceOptions,
        renderer: TokenizerRenderer,
        other: OtherRendering,
    ) -> None:
        self._own = Conversations(columns, options, renderer)
        others = columns.model_copy(update={"system_prompt": other.system_prompt})
        self._other = Conversations(others, options, other.renderer)
        self._options = options
        self._asked_by = other.options
        self._renderers = renderer, other.renderer
        self.columns, self.asked = self._own.columns, self._own.asked
        self.max_tokens = self._own.max_tokens

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        own = self._own.texts(row, images)
        if own[0].is_plain:
            raise RowProblem(
                "no chat",
                f"the prompt is plain text, of which {self._asked_by} changes nothing. Add --data.chat, or leave that "
                "out",
            )
        try:
            return [*own, *self._other.texts(row, images)]
        except RowProblem as problem:
            raise self._of_other(problem) from problem

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        own, other = tokens
        self._require_same_answers(own, other)
        first = cut_to(own, self._options)
        try:
            second = cut_to(other, self._options)
        except RowProblem as problem:
            raise self._of_other(problem) from problem
        count = min(map(_num_learned, (first, second)))
        own_part, other_part = (_first_learned(one, count) for one in (first, second))
        return [own_part, replace(other_part, sample=1)]

    def _of_other(self, problem: RowProblem) -> RowProblem:
        return RowProblem(problem.kind, f"as {self._asked_by} renders it: {problem.reason}")

    def _require_same_answers(self, own: LearnedTokens, other: LearnedTokens) -> None:
        """Refuse turns whose tokens differ, but for the last one where it is the end of the turn in both."""
        ends = [renderer.closing[-1:] for renderer in self._renderers]
        for number, both in enumerate(zip(own.turns, other.turns, strict=True), start=1):
            ids = [
                one.token_ids[slice(*turn)].tolist()
                for one, turn in zip((own, other), both, strict=True)
            ]
            if ids[0] == ids[1]:
                continue
            if ids[0][:-1] == ids[1][:-1] and [part[-1:] for part in ids] == ends:
                continue
            shown = [
                renderer.decode_batch([part], skip_special_tokens=False)[0]
                for renderer, part in zip(self._renderers, ids, strict=True)
            ]
            raise RowProblem(
                "other tokens",
                f"turn {number} to learn is {shown[0]!r:.80} ({len(ids[0])} tokens), and {shown[1]!r:.80} "
                f"({len(ids[1])} tokens) as {self._asked_by} renders it; expected the same tokens in both, but for the "
                "one that ends the turn. Use a template that shows answers as the student's does",
            )


def _num_learned(sequence: LearnedSequence) -> int:
    return int(np.diff(sequence.turns).sum())


def _first_learned(sequence: LearnedSequence, count: int) -> LearnedSequence:
    """Return a sequence that ends with its learned token number ``count``, if it has more."""
    if _num_learned(sequence) == count:
        return sequence
    lengths = np.diff(sequence.turns)[:, 0]  # (K,)
    before: NDArray[np.int64] = np.cumsum(lengths) - lengths
    turns = sequence.turns[before < count].copy()
    turns[-1, 1] = turns[-1, 0] + count - before[len(turns) - 1]
    return replace(
        sequence, token_ids=sequence.token_ids[: turns[-1, 1]], turns=turns, truncated=True
    )
