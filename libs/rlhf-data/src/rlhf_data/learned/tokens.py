"""Tokens of texts, each tokenized as a whole, and the tokens that lie in its learned spans.

A token that holds the end of a prompt and the beginning of an answer counts as the answer's: else a part of the answer
would not be learned. An added token, such as one that swallows the blanks behind it, is the template's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.token_columns import offsets_of
from rlhf_core.errors import DataError
from rlhf_core.media.spans import MediaSpan

from ..chat.control_words import ControlText
from ..chat.renderer import TokenizerRenderer
from ..chat.template.pieces import squeezed
from ..rows import RowProblem
from ..tokenizer import end_of_turn
from .learned_text import LearnedText


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedTokens:
    """Tokens of one text, and those that are learned. ``K`` is the number of spans."""

    token_ids: NDArray[np.int32]
    """(T,)"""
    turns: NDArray[np.int64]
    """(K, 2) index of the first token of each span, and the index after its last; ascending, none empty."""
    overhang: NDArray[np.int64]
    """(K, 2) characters before a span that its first token holds too, and behind it that its last one holds."""
    media: tuple[MediaSpan, ...] = ()
    """Images and their tokens."""


_BLANKS = "".join(
    char for char in map(chr, range(0x3001)) if char.isspace() and char not in "\x1c\x1d\x1e\x1f"
)
"""Blanks of Unicode, which special tokens swallow. Python's own blanks are these and four control characters."""


class RowTokenizer(Protocol):
    """Tokenizer of the texts of rows: a ``SpanTokenizer``, or several for renderings of several models."""

    renderer: TokenizerRenderer
    eos: int

    def tokenize(self, texts: Sequence[LearnedText]) -> list[LearnedTokens | RowProblem]:
        """Return the tokens of each text; a problem where they cannot be used."""


class SpanTokenizer:
    """Tokenizer of many texts at once that says which tokens are learned.

    Args:
        eos: end-of-sequence token, which goes behind plain texts.

    Raises:
        DataError: the tokenizer does not tell the characters of its tokens.
    """

    def __init__(self, renderer: TokenizerRenderer, eos: int) -> None:
        tokenizer = renderer.tokenizer
        if not tokenizer.is_fast:
            raise DataError(
                f"expected a tokenizer that reports which characters a token has (one with tokenizer.json); "
                f"{type(tokenizer).__name__} is written in Python and does not, so nobody could tell which tokens of a "
                "row are learned. Convert it, or name another folder with --model.tokenizer",
                code="tokenizer/no-offsets",
            )
        self.renderer = renderer
        self.eos = eos
        self._end = np.array([eos], dtype=np.int32)
        self._ends = {eos, end_of_turn(tokenizer)}  # a text that was rendered before has either
        self._prefix = np.array(renderer.texts.prefix, dtype=np.int32)
        self._added = np.array([*tokenizer.added_tokens_decoder], dtype=np.int32)

    def tokenize(self, texts: Sequence[LearnedText]) -> list[LearnedTokens | RowProblem]:
        """Return the tokens of each text; a problem where a span has no token, or its tokens are not its text."""
        if not texts:
            return []
        encoded = self.renderer.texts.locate([one.control_text() for one in texts])
        located = _Located.of(
            texts, [one.token_ids for one in encoded], [one.spans for one in encoded]
        )
        if not len(located.token_ids):
            return [_no_token() for _ in texts]
        # Arrays of all spans (S,), since a call of numpy for each of a million rows takes a minute.
        counts = np.array([len(text.spans) for text in texts], dtype=np.int64)
        wanted = located.characters_of(texts, counts)
        first, last = located.token_spans(wanted, counts, self._added)
        turns = np.stack([first, last], axis=1)
        turns -= np.repeat(located.row_starts[:-1], counts)[:, None]
        is_empty = (first >= last).tolist()
        before = wanted[:, 0] - located.starts[np.minimum(first, len(located.starts) - 1)]
        behind = located.ends[last - 1] - wanted[:, 1]
        overhang = np.maximum(np.stack([before, behind], axis=1), 0)
        results: list[LearnedTokens | RowProblem] = []
        rows, spans = located.row_starts.tolist(), offsets_of(counts).tolist()
        for row in range(len(texts)):
            begin, end = spans[row], spans[row + 1]
            if any(is_empty[begin:end]):
                results.append(_no_token())
                continue
            results.append(
                LearnedTokens(
                    token_ids=located.token_ids[rows[row] : rows[row + 1]],
                    turns=turns[begin:end],
                    overhang=overhang[begin:end],
                )
            )
        self._compare(texts, results)
        return [
            tokens if isinstance(tokens, RowProblem) else self._surrounded(tokens, text)
            for text, tokens in zip(texts, results, strict=True)
        ]

    def _surrounded(self, tokens: LearnedTokens, text: LearnedText) -> LearnedTokens:
        """Return the tokens of a text with those that start and end it, unless the text has them already."""
        ids, turns, prefix = tokens.token_ids, tokens.turns, self._prefix
        if text.is_plain and len(prefix) and not np.array_equal(ids[: len(prefix)], prefix):
            ids, turns = np.concatenate([prefix, ids]), turns + len(prefix)
        if text.is_ended and int(ids[-1]) not in self._ends:
            ids, turns = np.concatenate([ids, self._end]), turns.copy()
            turns[-1, 1] = len(ids)
        return LearnedTokens(token_ids=ids, turns=turns, overhang=tokens.overhang)

    def _compare(
        self, texts: Sequence[LearnedText], results: list[LearnedTokens | RowProblem]
    ) -> None:
        """Replace the rows whose learned tokens, decoded, are not the learned text by problems."""
        wanted: list[str] = []
        learned: list[list[int]] = []
        rows: list[int] = []
        for row, (text, tokens) in enumerate(zip(texts, results, strict=True)):
            if isinstance(tokens, RowProblem):
                continue
            turns, overhang = tokens.turns.tolist(), tokens.overhang.tolist()
            for span, turn, (before, behind) in zip(text.spans, turns, overhang, strict=True):
                wanted.append(text.text[span.start - before : span.end + behind])
                learned.append(tokens.token_ids[slice(*turn)].tolist())
                rows.append(row)
        shown = self.renderer.decode_batch(learned, skip_special_tokens=False)
        # Tokenizers add or drop blanks at the ends of a text, and so do special tokens that swallow blanks.
        doubtful = [
            place
            for place, text in enumerate(shown)
            if text != wanted[place] and squeezed(text) != squeezed(wanted[place])
        ]
        # A tokenizer may know fewer texts than there are (unknown tokens, lower case), so the text goes through it too.
        whole = self._passed_through([wanted[place] for place in doubtful])
        trimmed = self._passed_through([wanted[place].strip(_BLANKS) for place in doubtful])
        for place, *known in zip(doubtful, whole, trimmed, strict=True):
            if squeezed(shown[place]) not in map(squeezed, known):
                results[rows[place]] = RowProblem(
                    "tokens of another text",
                    f"the learned tokens are {shown[place]!r:.80}, but the answer is {wanted[place]!r:.80}; the "
                    "tokenizer misplaces its tokens in this text",
                )

    def _passed_through(self, texts: Sequence[str]) -> list[str]:
        encoded = self.renderer.texts.encode([ControlText(text=text) for text in texts])
        return self.renderer.decode_batch(encoded, skip_special_tokens=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Located:
    """Tokens of all texts, one text after the other, in a common numbering of the characters of all texts."""

    token_ids: NDArray[np.int32]
    """(N,) N is the number of tokens of all texts."""
    starts: NDArray[np.int64]
    """(N,) first character of each token."""
    ends: NDArray[np.int64]
    """(N,) character after the last of each token; ascending."""
    row_starts: NDArray[np.int64]
    """(B + 1,) first token of each text, and at the end N."""
    bases: NDArray[np.int64]
    """(B + 1,) number of the first character of each text."""

    @classmethod
    def of(
        cls,
        texts: Sequence[LearnedText],
        ids: Sequence[Sequence[int]],
        characters: Sequence[Sequence[tuple[int, int]]],
    ) -> _Located:
        row_starts = offsets_of(np.array([len(row) for row in ids], dtype=np.int64))
        count = int(row_starts[-1])
        bases = offsets_of(np.array([len(one.text) + 1 for one in texts], dtype=np.int64))
        flat = (
            np.fromiter(
                chain.from_iterable(chain.from_iterable(characters)),
                dtype=np.int64,
                count=2 * count,
            ).reshape(-1, 2)
            + np.repeat(bases[:-1], np.diff(row_starts))[:, None]
        )
        return cls(
            token_ids=np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=count),
            starts=flat[:, 0],
            ends=np.maximum.accumulate(flat[:, 1]),
            row_starts=row_starts,
            bases=bases,
        )

    def characters_of(
        self, texts: Sequence[LearnedText], counts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return first and last + 1 character (S, 2) of each span of each text, in the common numbering.

        Args:
            counts: (B,) number of spans of each text.
        """
        spans = np.array([span for one in texts for span in one.spans], dtype=np.int64)
        characters: NDArray[np.int64] = (
            spans.reshape(-1, 2) + np.repeat(self.bases[:-1], counts)[:, None]
        )
        return characters

    def token_spans(
        self, spans: NDArray[np.int64], counts: NDArray[np.int64], added: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each span (S, 2), in order, the first token that has a character of it and the last one + 1.

        Some tokenizers leave the blanks at a token's beginning out of its characters; so a token begins, at the latest,
        where the one before it ends.
        """
        before = np.concatenate([[0], self.ends[:-1]])
        before = np.maximum(before, np.repeat(self.bases[:-1], np.diff(self.row_starts)))
        starts = np.maximum.accumulate(np.minimum(self.starts, before))
        first = np.searchsorted(self.ends, spans[:, 0], side="right")
        last = np.searchsorted(starts, spans[:, 1], side="left")
        at = np.minimum(first, len(self.token_ids) - 1)
        first = first + (np.isin(self.token_ids[at], added) & (self.starts[at] < spans[:, 0]))
        # Turns without a token of the template between them may share one; it is the earlier turn's.
        follows = np.flatnonzero(np.diff(np.repeat(np.arange(len(counts)), counts)) == 0) + 1
        first[follows] = np.maximum(first[follows], last[follows - 1])
        return first, np.maximum(last, first)


def _no_token() -> RowProblem:
    return RowProblem("no token", "a learned turn has no token of its own")
