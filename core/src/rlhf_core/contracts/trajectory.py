"""What a rollout leaves behind: one trajectory, and many of them as columns.

Axes: ``B`` sequences, ``T`` tokens of a sequence (prompt, actions, environment text), ``A`` action tokens (those
that the policy wrote).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .task import Uid

LONG_ROW = 64
"""Elements, on average, from which on rows are copied one by one."""


class Stop(StrEnum):
    """Why the policy stopped writing."""

    EOS = "eos"
    """It wrote an end-of-sequence token."""
    STRING = "string"
    """One of the stop strings appeared."""
    LENGTH = "length"
    """The token limit was reached: the turn is truncated."""
    ABORTED = "aborted"
    """The engine gave it up (shutdown, weight update without resume)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One stretch of action tokens and what it earned."""

    start: int
    """Index in ``token_ids`` of the turn's first action token."""
    end: int
    """One past its last action token."""
    reward: float = 0.0
    """What the environment gave for this turn; it lands on the turn's last action token."""
    stop: Stop = Stop.EOS


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One training sequence, exactly as it was sampled (token in, token out).

    Raises:
        ValueError: the arrays' lengths disagree, a turn lies outside of the sequence, or the actions and the
            turns do not cover the same tokens.
    """

    uid: Uid
    token_ids: NDArray[np.int32]
    """(T,)"""
    action_mask: NDArray[np.bool_]
    """(T,) True at the tokens that the policy wrote. The first token is never an action."""
    rollout_logprobs: NDArray[np.float32]
    """(A,) log-probability of each action under the distribution that it was sampled from."""
    weight_version: NDArray[np.int32]
    """(A,) version of the weights that sampled each action."""
    turns: tuple[Turn, ...]
    """In order; together they cover exactly the action tokens."""
    reward: float | None = None
    """Score of the whole episode, filled in by the rewards; None until then. Turn rewards come on top."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The rewards that made up ``reward``, by name, unweighted."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Anything countable that the executor, environment or rewards report; averaged in the logs."""

    def __post_init__(self) -> None:
        num_tokens, num_actions = len(self.token_ids), int(self.action_mask.sum())
        if len(self.action_mask) != num_tokens:
            raise ValueError(
                f"{self.uid}: {num_tokens} tokens but a mask of {len(self.action_mask)}"
            )
        if num_tokens and self.action_mask[0]:
            raise ValueError(
                f"{self.uid}: the first token is an action; nothing precedes it to predict it from"
            )
        for name in ("rollout_logprobs", "weight_version"):
            if len(getattr(self, name)) != num_actions:
                raise ValueError(
                    f"{self.uid}: {num_actions} action tokens but {len(getattr(self, name))} {name}"
                )
        covered = np.zeros(num_tokens, dtype=bool)
        for turn in self.turns:
            if not 0 < turn.start < turn.end <= num_tokens or covered[turn.start : turn.end].any():
                raise ValueError(
                    f"{self.uid}: turn [{turn.start}, {turn.end}) is empty, overlaps another, or lies outside "
                    f"of {num_tokens} tokens"
                )
            covered[turn.start : turn.end] = True
        if not np.array_equal(covered, self.action_mask):
            raise ValueError(f"{self.uid}: the turns do not cover exactly the action tokens")

    @property
    def truncated(self) -> bool:
        """True when the last turn hit a token limit."""
        return bool(self.turns) and self.turns[-1].stop == Stop.LENGTH

    @property
    def total_reward(self) -> float:
        """Episode reward (0 if there is none) plus the rewards of the turns."""
        return (self.reward or 0.0) + sum(turn.reward for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryColumns:
    """Many trajectories as flat arrays with offsets, ordered by uid.

    ``x_offsets`` has B + 1 entries; row b owns ``x[offsets[b]:offsets[b + 1]]``. Slicing and joining move whole
    arrays, never single samples, and the arrays can live in shared memory.
    """

    uid: NDArray[np.int64]
    """(B, 4) epoch, prompt, sample, segment."""
    token_ids: NDArray[np.int32]
    """(sum of T,)"""
    action_mask: NDArray[np.bool_]
    """(sum of T,)"""
    token_offsets: NDArray[np.int64]
    """(B + 1,)"""
    rollout_logprobs: NDArray[np.float32]
    """(sum of A,)"""
    weight_version: NDArray[np.int32]
    """(sum of A,)"""
    action_turn: NDArray[np.int32]
    """(sum of A,) which turn of its trajectory each action belongs to."""
    turn_rewards: NDArray[np.float32]
    """(sum of A,) each turn's reward on its last action token, 0 elsewhere."""
    action_offsets: NDArray[np.int64]
    """(B + 1,)"""
    reward: NDArray[np.float32]
    """(B,) the episode's score, without turn rewards."""
    rewards: Mapping[str, NDArray[np.float32]]
    """(B,) each: the scores by reward name, NaN where a sample has none."""
    truncated: NDArray[np.bool_]
    """(B,)"""
    metrics: Mapping[str, NDArray[np.float32]]
    """(B,) each, NaN where a sample did not report."""

    def __len__(self) -> int:
        return len(self.uid)

    @property
    def num_tokens(self) -> NDArray[np.int64]:
        """(B,) tokens of each sequence."""
        return np.diff(self.token_offsets)

    @property
    def num_actions(self) -> NDArray[np.int64]:
        """(B,) action tokens of each sequence."""
        return np.diff(self.action_offsets)

    @property
    def group(self) -> NDArray[np.int64]:
        """(B,) dense index of each sequence's group (the episodes of one prompt in one epoch)."""
        return _dense_index(self.uid[:, :2])

    @property
    def episode(self) -> NDArray[np.int64]:
        """(B,) dense index of each sequence's episode."""
        return _dense_index(self.uid[:, :3])

    @property
    def total_reward(self) -> NDArray[np.float32]:
        """(B,) episode reward plus turn rewards."""
        turns = np.zeros(len(self), dtype=np.float64)
        np.add.at(turns, np.repeat(np.arange(len(self)), self.num_actions), self.turn_rewards)
        return (self.reward + turns).astype(np.float32)

    def uids(self) -> Iterator[Uid]:
        """Yield each sequence's name."""
        for row in self.uid.tolist():
            yield Uid(*row)

    def tokens_of(self, row: int) -> NDArray[np.int32]:
        """(T,) a view of one sequence's tokens."""
        return self.token_ids[self.token_offsets[row] : self.token_offsets[row + 1]]

    def actions_of(self, row: int) -> NDArray[np.int32]:
        """(A,) the tokens that the policy wrote in one sequence."""
        span = slice(self.token_offsets[row], self.token_offsets[row + 1])
        return self.token_ids[span][self.action_mask[span]]

    def action_index(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Positions, in any column of (sum of A,), of the given rows' actions in the given order."""
        return _ragged_index(self.action_offsets, rows)

    def select(self, rows: NDArray[np.integer]) -> TrajectoryColumns:
        """Return the given rows, in the given order."""
        tokens = _taker(self.token_offsets, rows)
        actions = _taker(self.action_offsets, rows)
        return TrajectoryColumns(
            uid=self.uid[rows],
            token_ids=tokens(self.token_ids),
            action_mask=tokens(self.action_mask),
            token_offsets=_offsets(self.num_tokens[rows]),
            rollout_logprobs=actions(self.rollout_logprobs),
            weight_version=actions(self.weight_version),
            action_turn=actions(self.action_turn),
            turn_rewards=actions(self.turn_rewards),
            action_offsets=_offsets(self.num_actions[rows]),
            reward=self.reward[rows],
            rewards={name: column[rows] for name, column in self.rewards.items()},
            truncated=self.truncated[rows],
            metrics={name: column[rows] for name, column in self.metrics.items()},
        )

    @classmethod
    def concatenate(cls, parts: Sequence[TrajectoryColumns]) -> TrajectoryColumns:
        """Join batches and order the rows by uid.

        Raises:
            ValueError: there are none, or two rows share a uid.
        """
        if not parts:
            raise ValueError("no batches to join")
        uid = np.concatenate([part.uid for part in parts])
        if len(np.unique(uid, axis=0)) != len(uid):
            raise ValueError("two trajectories share a uid")

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(part, name) for part in parts])

        flat = (
            "token_ids",
            "action_mask",
            "rollout_logprobs",
            "weight_version",
            "action_turn",
            "turn_rewards",
        )
        whole = cls(
            uid=uid,
            **{name: joined(name) for name in (*flat, "reward", "truncated")},
            token_offsets=_offsets(joined("num_tokens")),
            action_offsets=_offsets(joined("num_actions")),
            rewards=_joined_named([part.rewards for part in parts], [len(part) for part in parts]),
            metrics=_joined_named([part.metrics for part in parts], [len(part) for part in parts]),
        )
        return whole.select(np.lexsort(uid.T[::-1]))

    @classmethod
    def from_trajectories(cls, trajectories: list[Trajectory]) -> TrajectoryColumns:
        """Pack scored trajectories, ordered by uid.

        Raises:
            ValueError: there are none, or two share a uid.
        """
        if not trajectories:
            raise ValueError("no trajectories to pack")
        rows = sorted(trajectories, key=lambda trajectory: trajectory.uid)
        uid = np.array([row.uid for row in rows], dtype=np.int64)
        if len(np.unique(uid, axis=0)) != len(rows):
            raise ValueError("two trajectories share a uid")
        turn_index, turn_rewards = zip(*(_turn_columns(row) for row in rows), strict=True)
        return cls(
            uid=uid,
            token_ids=_packed([row.token_ids for row in rows], np.int32),
            action_mask=np.concatenate([row.action_mask for row in rows]),
            token_offsets=_offsets(np.array([len(row.token_ids) for row in rows])),
            rollout_logprobs=_packed([row.rollout_logprobs for row in rows], np.float32),
            weight_version=_packed([row.weight_version for row in rows], np.int32),
            action_turn=np.concatenate(turn_index),
            turn_rewards=np.concatenate(turn_rewards),
            action_offsets=_offsets(np.array([len(row.rollout_logprobs) for row in rows])),
            reward=np.array([row.reward or 0.0 for row in rows], dtype=np.float32),
            rewards=_named_columns([row.rewards for row in rows]),
            truncated=np.array([row.truncated for row in rows], dtype=bool),
            metrics=_named_columns([row.metrics for row in rows]),
        )


def _packed(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    """One array of all parts; batches are large, so without a second copy."""
    return np.concatenate(parts).astype(dtype, copy=False)


def _turn_columns(row: Trajectory) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    lengths = [turn.end - turn.start for turn in row.turns]
    index = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    rewards = np.zeros(len(index), dtype=np.float32)
    if lengths:
        rewards[np.cumsum(lengths) - 1] = [turn.reward for turn in row.turns]
    return index, rewards


def _named_columns(rows: list[Mapping[str, float]]) -> dict[str, NDArray[np.float32]]:
    names = sorted({name for row in rows for name in row})
    return {
        name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float32) for name in names
    }


def _joined_named(
    parts: Sequence[Mapping[str, NDArray[np.float32]]], sizes: Sequence[int]
) -> dict[str, NDArray[np.float32]]:
    names = sorted({name for part in parts for name in part})
    return {
        name: np.concatenate(
            [
                part.get(name, np.full(size, np.nan, dtype=np.float32))
                for part, size in zip(parts, sizes, strict=True)
            ]
        )
        for name in names
    }


def _offsets(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _dense_index(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    _, index = np.unique(keys, axis=0, return_inverse=True)
    return np.asarray(index, dtype=np.int64).reshape(-1)


def _taker(
    offsets: NDArray[np.int64], rows: NDArray[np.integer]
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """What takes the elements of ``rows``, in order, from a column."""
    starts, ends = offsets[:-1][rows], offsets[1:][rows]
    if int((ends - starts).sum()) <= LONG_ROW * len(rows):
        index = _ragged_index(offsets, rows)
        return lambda column: column[index]
    # An index would be larger than what it takes: 8 bytes an element.
    spans = list(map(slice, starts.tolist(), ends.tolist()))
    return lambda column: np.concatenate([column[span] for span in spans])


def _ragged_index(offsets: NDArray[np.int64], rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Indices of the elements of ``rows``, in order, without a loop over them."""
    lengths = np.diff(offsets)[rows]
    starts = np.repeat(offsets[:-1][rows] - _offsets(lengths)[:-1], lengths)
    index: NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64) + starts
    return index
