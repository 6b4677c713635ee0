"""Sequences of tokens with learned turns: cut to a length, cut into pieces, and gathered as columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.media_columns import media_rows
from rlhf_core.batch.task import Uid
from rlhf_core.batch.token_columns import TokenColumns, offsets_of
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.backend import MARGIN
from rlhf_core.media.spans import MediaSpan

from ..rows import RowProblem
from .options import SequenceOptions
from .tokens import LearnedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSequence:
    """One training sequence of a row."""

    token_ids: NDArray[np.int32]
    """(T,)"""
    turns: NDArray[np.int64]
    """(K, 2) start and end of each learned turn."""
    turn_rewards: NDArray[np.float32] | None = None
    """(K,) label of each step; None: zeros."""
    sample: int = 0
    """Index of the sequence among those of its row: 0 for the preferred answer of a pair, 1 for the other."""
    segment: int = 0
    """Index of the piece among those of its text."""
    reward: float = 0.0
    """1 for a good or preferred answer."""
    margin: float | None = None
    """Number that says how much better the preferred answer of the pair is."""
    truncated: bool = False
    """Whether the end was cut off."""
    media: tuple[MediaSpan, ...] = ()
    """Images and their tokens."""


def max_tokens_of(options: SequenceOptions) -> int | None:
    """Return the number of tokens above which a row is bad; None where a longer row is cut."""
    return options.max_length if options.on_too_long == "refuse" else None


def cut_to(tokens: LearnedTokens, options: SequenceOptions) -> LearnedSequence:
    """Return the tokens of a row as one sequence of at most ``max_length`` tokens.

    Raises:
        RowProblem: the row is longer and must not be, or has no learned token left; or nothing is before its first
            learned token, to predict it from.
    """
    length, limit = len(tokens.token_ids), options.max_length
    if not tokens.turns[0, 0]:
        raise RowProblem(
            "nothing before",
            "the first token is learned, but nothing is before it to predict it from",
        )
    if length <= limit:
        return LearnedSequence(token_ids=tokens.token_ids, turns=tokens.turns, media=tokens.media)
    if options.on_too_long == "refuse":
        fix = "cut it with --data.on_too_long truncate"
        if tokens.turns[0, 0] >= limit:
            first = tokens.turns[0, 0] + 1
            fix = f"what is learned begins behind them, at token {first}: raise --data.max_length"
        raise RowProblem(
            "too long", f"the row has {length} tokens, --data.max_length allows {limit}; {fix}"
        )
    # Half of an image would be no image.
    limit = min([limit, *(span.start for span in tokens.media if span.start < limit < span.end)])
    kept = tokens.turns[tokens.turns[:, 0] < limit]
    if not len(kept):
        raise RowProblem(
            "nothing left to learn",
            f"the first learned token is number {tokens.turns[0, 0] + 1} of {length}, but --data.max_length "
            f"{options.max_length} cuts it off; raise it, or leave the row out",
        )
    return LearnedSequence(
        token_ids=tokens.token_ids[:limit],
        turns=np.minimum(kept, limit),
        truncated=True,
        media=tuple(span for span in tokens.media if span.end <= limit),
    )


def pieces_of(token_ids: NDArray[np.int32], max_length: int) -> Iterator[LearnedSequence]:
    """Yield pieces of at most ``max_length`` tokens, in which all tokens but the first are learned.

    A piece begins with the last token of the piece before. So each token is learned once, but the first of the text.
    """
    for segment, start in enumerate(range(0, len(token_ids) - 1, max_length - 1)):
        piece = token_ids[start : start + max_length]
        yield LearnedSequence(
            token_ids=piece, turns=np.array([[1, len(piece)]], dtype=np.int64), segment=segment
        )


class SequenceColumns:
    """Gatherer of sequences, which it keeps as flat arrays."""

    def __init__(self) -> None:
        self._uids = array("q")
        self._token_ids = array("i")
        self._num_tokens, self._num_turns = array("q"), array("q")
        self._turns = array("q")
        self._turn_rewards, self._rewards, self._margins = array("f"), array("f"), array("f")
        self._truncated = array("b")
        self._num_media = array("q")
        self._media: list[MediaSpan] = []

    def __len__(self) -> int:
        return len(self._num_tokens)

    def add(self, index: int, sequence: LearnedSequence) -> None:
        """Add a sequence of the row ``index``; sequences come in the order of rows, samples and segments."""
        self._uids.extend(Uid(0, index, sequence.sample, sequence.segment))
        self._token_ids.frombytes(np.ascontiguousarray(sequence.token_ids, np.intc).tobytes())
        self._num_tokens.append(len(sequence.token_ids))
        self._num_turns.append(len(sequence.turns))
        self._turns.frombytes(np.ascontiguousarray(sequence.turns, np.int64).tobytes())
        rewards = sequence.turn_rewards
        self._turn_rewards.extend([0.0] * len(sequence.turns) if rewards is None else rewards)
        self._rewards.append(sequence.reward)
        self._margins.append(np.nan if sequence.margin is None else sequence.margin)
        self._truncated.append(sequence.truncated)
        self._num_media.append(len(sequence.media))
        self._media.extend(sequence.media)

    def columns(self) -> TrajectoryColumns:
        """Return all sequences; the action mask marks the learned tokens."""
        token_ids = np.array(self._token_ids, dtype=np.int32)
        offsets = offsets_of(np.array(self._num_tokens, dtype=np.int64))
        num_turns = np.array(self._num_turns, dtype=np.int64)
        turns = np.array(self._turns, dtype=np.int64).reshape(-1, 2)  # (U, 2)
        turn_actions = turns[:, 1] - turns[:, 0]
        mask = _mask_of(turns + np.repeat(offsets[:-1], num_turns)[:, None], len(token_ids))
        num_actions = np.add.reduceat(turn_actions, offsets_of(num_turns)[:-1])
        actions = int(turn_actions.sum())
        margins = np.array(self._margins, dtype=np.float32)
        return TrajectoryColumns.from_tokens(
            TokenColumns(
                token_ids=token_ids,
                action_mask=mask,
                token_offsets=offsets,
                rollout_logprobs=np.zeros(actions, dtype=np.float32),
                weight_version=np.zeros(actions, dtype=np.int32),
                action_offsets=offsets_of(num_actions),
            ),
            uid=np.array(self._uids, dtype=np.int64).reshape(-1, 4),
            num_turns=num_turns,
            turn_actions=turn_actions,
            turn_rewards=np.array(self._turn_rewards, dtype=np.float32),
            reward=np.array(self._rewards, dtype=np.float32),
            truncated=np.array(self._truncated, dtype=bool),
            num_media=np.array(self._num_media, dtype=np.int64),
            media=media_rows(self._media),
            rewards={} if np.isnan(margins).all() else {MARGIN: margins},
        )


def _mask_of(spans: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Return (length,) True within the spans (U, 2), which do not overlap."""
    steps = np.zeros(length + 1, dtype=np.int8)
    # Two turns may touch, so their steps are added.
    np.add.at(steps, spans[:, 0], 1)
    np.add.at(steps, spans[:, 1], -1)
    mask: NDArray[np.bool_] = np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
    return mask
