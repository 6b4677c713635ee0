"""Many trajectories as columns.

Axes: ``B`` sequences, ``T`` tokens of a sequence (prompt, actions, environment text), ``A`` action tokens (those
that the policy wrote), ``U`` turns of all sequences, ``S`` step rewards of all sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from ..lazy import NDArray, np
from ..media.reference import MediaRef
from ..media.spans import MediaSpan, seen_together
from .media_columns import MEDIA, media_rows, media_spans
from .task import Uid
from .token_columns import (
    Rows,
    TokenColumns,
    Tokens,
    joined_routes,
    joined_tokens,
    offsets_of,
    packed,
    ragged_index,
)
from .trajectory import Trajectory

PER_ROW = (
    "uid",
    "num_tokens",
    "num_actions",
    "num_turns",
    "num_steps",
    "num_media",
    "oldest_version",
    "version_counts",
    "reward",
    "truncated",
)
"""Names of the columns with one entry a row."""
PER_TURN = ("turn_actions", "turn_rewards", "turn_places")
"""Names of the columns with one entry a turn."""
PER_STEP = ("step_actions", "step_rewards")
"""Names of the columns with one entry a step reward."""
PER_MEDIA = ("media",)
"""Names of the columns with one entry an image."""
IMAGE = 2**32
"""Added to the tokens of an image, once for each image before it in the batch: larger than any token id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryColumns:
    """Trajectories, ordered by uid: small columns by row and turn, and their tokens, which may be elsewhere.

    Selecting and joining move whole arrays, never single samples, and read no tokens. The properties that have one
    entry a token or action do read them: where tokens are elsewhere, the whole batch's are fetched.
    """

    uid: NDArray[np.int64]
    """(B, 4) epoch, prompt, sample, segment."""
    num_tokens: NDArray[np.int64]
    """(B,) tokens of each sequence."""
    num_actions: NDArray[np.int64]
    """(B,) action tokens of each sequence."""
    num_turns: NDArray[np.int64]
    """(B,)"""
    turn_actions: NDArray[np.int64]
    """(U,) action tokens of each turn."""
    turn_rewards: NDArray[np.float32]
    """(U,) reward that the environment gave for each turn."""
    turn_places: NDArray[np.int64]
    """(U,) place of each turn in its episode (``Turn.place``)."""
    num_steps: NDArray[np.int64]
    """(B,) step rewards of each sequence: parts of ``reward`` on single actions."""
    step_actions: NDArray[np.int64]
    """(S,) the action on which each part stands, counted among its sequence's actions, from 0."""
    step_rewards: NDArray[np.float32]
    """(S,) the parts; what they leave of ``reward`` stands on the sequence's last action."""
    num_media: NDArray[np.int64]
    """(B,) images of each sequence."""
    media: NDArray[np.void]
    """(I,) images with the places of their tokens (``media_columns.MEDIA``)."""
    oldest_version: NDArray[np.int64]
    """(B,) oldest version of weights that sampled an action; 0 where there is none."""
    version_counts: NDArray[np.int64]
    """(B, W) actions sampled by version ``oldest_version + w``."""
    reward: NDArray[np.float32]
    """(B,) the episode's reward, step rewards included, without turn rewards."""
    rewards: Mapping[str, NDArray[np.float32]]
    """(B,) each: the single rewards by name, unweighted, NaN where a sample has none."""
    truncated: NDArray[np.bool_]
    """(B,)"""
    metrics: Mapping[str, NDArray[np.float32]]
    """(B,) each: the metrics that samples report, by name, NaN where a sample did not."""
    tokens: Tokens
    """Tokens, masks and log-probs, here or in another process."""

    def __len__(self) -> int:
        return len(self.uid)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """(sum of T,)"""
        return self.tokens.read().token_ids

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """(sum of T,)"""
        return self.tokens.read().action_mask

    @property
    def rollout_logprobs(self) -> NDArray[np.float32]:
        """(sum of A,) log-probs under the sampler; NaN in rows for which the run did not request them."""
        return self.tokens.read().rollout_logprobs

    @property
    def weight_version(self) -> NDArray[np.int32]:
        """(sum of A,)"""
        return self.tokens.read().weight_version

    @property
    def token_offsets(self) -> NDArray[np.int64]:
        """(B + 1,) row b owns ``token_ids[token_offsets[b]:token_offsets[b + 1]]``."""
        return offsets_of(self.num_tokens)

    @property
    def action_offsets(self) -> NDArray[np.int64]:
        """(B + 1,) offsets of the columns of (sum of A,), as ``token_offsets``."""
        return offsets_of(self.num_actions)

    @property
    def action_turn(self) -> NDArray[np.int64]:
        """(sum of A,) index within its trajectory of the turn that each action belongs to, from 0."""
        first = np.repeat(offsets_of(self.num_turns)[:-1], self.num_turns)
        return np.repeat(np.arange(len(self.turn_actions)) - first, self.turn_actions)

    @property
    def action_rewards(self) -> NDArray[np.float32]:
        """(sum of A,) each turn's reward on its last action token, 0 elsewhere."""
        rewards = np.zeros(int(self.turn_actions.sum()), dtype=np.float32)
        rewards[np.cumsum(self.turn_actions) - 1] = self.turn_rewards
        return rewards

    @property
    def step_rows(self) -> NDArray[np.int64]:
        """(S,) the row that each step reward belongs to."""
        return np.repeat(np.arange(len(self)), self.num_steps)

    @property
    def reward_at_end(self) -> NDArray[np.float32]:
        """(B,) rest of the episode's reward after the step rewards; the last action gets it."""
        parts = np.bincount(self.step_rows, weights=self.step_rewards, minlength=len(self))
        return (self.reward - parts).astype(np.float32)

    @property
    def group(self) -> NDArray[np.int64]:
        """(B,) dense index of each sequence's group (the episodes of one prompt in one epoch)."""
        return _dense_index(self.uid[:, :2])

    @property
    def episode(self) -> NDArray[np.int64]:
        """(B,) dense index of each sequence's episode."""
        return _dense_index(self.uid[:, :3])

    @property
    def episode_truncated(self) -> NDArray[np.bool_]:
        """(B,) True at each sequence of an episode of which one was truncated."""
        return np.isin(self.episode, self.episode[self.truncated])

    @property
    def total_reward(self) -> NDArray[np.float32]:
        """(B,) episode reward plus turn rewards."""
        turns = np.zeros(len(self), dtype=np.float64)
        np.add.at(turns, np.repeat(np.arange(len(self)), self.num_turns), self.turn_rewards)
        return (self.reward + turns).astype(np.float32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return every array of the batch by name; this reads the tokens."""
        columns = self.tokens.read()
        named = {f"rewards/{name}": column for name, column in self.rewards.items()}
        named |= {f"metrics/{name}": column for name, column in self.metrics.items()}
        names = (*PER_ROW, *PER_TURN, *PER_STEP, *PER_MEDIA)
        named |= {name: getattr(self, name) for name in names}
        found = {item.name: getattr(columns, item.name) for item in fields(columns)}
        return named | {name: column for name, column in found.items() if column is not None}

    def media_of(self, row: int) -> tuple[MediaSpan, ...]:
        """Return the images of one sequence, with the places of their tokens in it."""
        if not self.num_media[row]:
            return ()
        end = int(self.num_media[: row + 1].sum())
        return media_spans(self.media[end - int(self.num_media[row]) : end])

    def tokens_with_images(self) -> list[NDArray[np.int64]]:
        """Return the tokens (T,) of each row, among which those of different images differ, whatever their ids.

        To each token of an image the number of the image is added, times ``IMAGE``. So equal sequences are equal
        prompts and observations.
        """
        tokens = self.token_ids.astype(np.int64)
        offsets = self.token_offsets.tolist()
        numbers: dict[tuple[MediaRef, ...], int] = {}
        for row in np.flatnonzero(self.num_media).tolist():
            for span, seen in seen_together(self.media_of(row)):
                number = numbers.setdefault(seen, len(numbers) + 1)
                tokens[offsets[row] + span.start : offsets[row] + span.end] += IMAGE * number
        return [tokens[first:end] for first, end in pairwise(offsets)]

    def uids(self) -> Iterator[Uid]:
        """Yield each sequence's name."""
        for row in self.uid.tolist():
            yield Uid(*row)

    def tokens_of(self, row: int) -> NDArray[np.int32]:
        """Return (T,) a view of one sequence's tokens."""
        columns = self.tokens.read()
        return columns.token_ids[columns.token_offsets[row] : columns.token_offsets[row + 1]]

    def actions_of(self, row: int) -> NDArray[np.int32]:
        """Return (A,) the tokens that the policy wrote in one sequence."""
        columns = self.tokens.read()
        span = slice(columns.token_offsets[row], columns.token_offsets[row + 1])
        return columns.token_ids[span][columns.action_mask[span]]

    def action_index(self, rows: Rows) -> NDArray[np.int64]:
        """Return the positions, in any column of (sum of A,), of the actions of the given rows, in the given order."""
        return ragged_index(self.action_offsets, rows)

    def select(self, rows: Rows) -> TrajectoryColumns:
        """Return the given rows, in the given order."""
        turns = ragged_index(offsets_of(self.num_turns), rows)
        steps = ragged_index(offsets_of(self.num_steps), rows)
        media = ragged_index(offsets_of(self.num_media), rows)
        return TrajectoryColumns(
            **{name: getattr(self, name)[rows] for name in PER_ROW},
            **{name: getattr(self, name)[turns] for name in PER_TURN},
            **{name: getattr(self, name)[steps] for name in PER_STEP},
            **{name: getattr(self, name)[media] for name in PER_MEDIA},
            rewards={name: column[rows] for name, column in self.rewards.items()},
            metrics={name: column[rows] for name, column in self.metrics.items()},
            tokens=self.tokens.select(rows),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[TrajectoryColumns]) -> TrajectoryColumns:
        """Join batches and order the rows by uid.

        Raises:
            ValueError: there are no batches, or two rows share a uid.
        """
        if not parts:
            raise ValueError("no batches to join")
        sizes = [len(part) for part in parts]
        widest = max(part.version_counts.shape[1] for part in parts)
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in (*PER_ROW, *PER_TURN, *PER_STEP, *PER_MEDIA)
            if name != "version_counts"
        }
        whole = cls(
            **columns,
            version_counts=np.concatenate(
                [_widened(part.version_counts, widest) for part in parts]
            ),
            rewards=_joined_named([part.rewards for part in parts], sizes),
            metrics=_joined_named([part.metrics for part in parts], sizes),
            tokens=joined_tokens([part.tokens for part in parts]),
        )
        order = np.lexsort(whole.uid.T[::-1])
        ordered = whole.uid[order]
        if (ordered[1:] == ordered[:-1]).all(axis=1).any():
            raise ValueError("two trajectories share a uid")
        return whole if (order == np.arange(len(order))).all() else whole.select(order)

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory]) -> TrajectoryColumns:
        """Pack scored trajectories, ordered by uid.

        Raises:
            ValueError: there are no trajectories, or two share a uid.
        """
        if not trajectories:
            raise ValueError("no trajectories to pack")
        # In an order that does not depend on which episode ended first.
        rows = sorted(trajectories, key=lambda trajectory: trajectory.uid)
        if len({row.uid for row in rows}) != len(rows):
            raise ValueError("two trajectories share a uid")
        # Rows have any number of these: they lie one after the other, beside each row's number of them.
        turns = [turn for row in rows for turn in row.turns]
        steps = [step for row in rows for step in row.step_rewards]
        spans = [span for row in rows for span in row.media]
        return cls.from_tokens(
            TokenColumns(
                token_ids=packed([row.token_ids for row in rows], np.int32),
                action_mask=np.concatenate([row.action_mask for row in rows]),
                token_offsets=offsets_of(np.array([len(row.token_ids) for row in rows])),
                rollout_logprobs=packed([row.rollout_logprobs for row in rows], np.float32),
                weight_version=packed([row.weight_version for row in rows], np.int32),
                action_offsets=offsets_of(np.array([len(row.rollout_logprobs) for row in rows])),
                routes=joined_routes(
                    [row.routes for row in rows], [len(row.token_ids) for row in rows]
                ),
            ),
            uid=np.array([row.uid for row in rows], dtype=np.int64),
            num_turns=np.array([len(row.turns) for row in rows], dtype=np.int64),
            turn_actions=np.array([n for row in rows for n in row.turn_actions], dtype=np.int64),
            turn_rewards=np.array([turn.reward for turn in turns], dtype=np.float32),
            turn_places=np.array([turn.place for turn in turns], dtype=np.int64),
            num_steps=np.array([len(row.step_rewards) for row in rows], dtype=np.int64),
            step_actions=np.array([action for action, _ in steps], dtype=np.int64),
            step_rewards=np.array([part for _, part in steps], dtype=np.float32),
            num_media=np.array([len(row.media) for row in rows], dtype=np.int64),
            media=media_rows(spans) if spans else None,
            reward=np.array([row.reward or 0.0 for row in rows], dtype=np.float32),
            rewards=_named_columns([row.rewards for row in rows]),
            truncated=np.array([row.truncated for row in rows], dtype=bool),
            metrics=_named_columns([row.metrics for row in rows]),
        )

    @classmethod
    def from_tokens(
        cls,
        tokens: TokenColumns,
        *,
        uid: NDArray[np.int64],
        num_turns: NDArray[np.int64],
        turn_actions: NDArray[np.int64],
        turn_rewards: NDArray[np.float32],
        reward: NDArray[np.float32],
        truncated: NDArray[np.bool_],
        turn_places: NDArray[np.int64] | None = None,
        num_steps: NDArray[np.int64] | None = None,
        step_actions: NDArray[np.int64] | None = None,
        step_rewards: NDArray[np.float32] | None = None,
        num_media: NDArray[np.int64] | None = None,
        media: NDArray[np.void] | None = None,
        rewards: Mapping[str, NDArray[np.float32]] | None = None,
        metrics: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> TrajectoryColumns:
        """Return a batch whose tokens are in memory; the columns that follow from the tokens are computed. Without the
        columns of step rewards and of images there are none; without places turns are in the order of the rows."""
        # Empty columns in the place of absent ones: who reads a batch need not ask whether there are any.
        none = np.zeros(0, dtype=np.int64)
        oldest, counts = tokens.version_counts()
        return cls(
            uid=uid,
            num_tokens=np.diff(tokens.token_offsets),
            num_actions=np.diff(tokens.action_offsets),
            num_turns=num_turns,
            turn_actions=turn_actions,
            turn_rewards=turn_rewards,
            turn_places=np.zeros_like(turn_actions) if turn_places is None else turn_places,
            num_steps=np.zeros(len(uid), dtype=np.int64) if num_steps is None else num_steps,
            step_actions=none if step_actions is None else step_actions,
            step_rewards=none.astype(np.float32) if step_rewards is None else step_rewards,
            num_media=np.zeros(len(uid), dtype=np.int64) if num_media is None else num_media,
            media=np.zeros(0, dtype=MEDIA) if media is None else media,
            oldest_version=oldest,
            version_counts=counts,
            reward=reward,
            rewards=rewards or {},
            truncated=truncated,
            metrics=metrics or {},
            tokens=tokens,
        )


def _widened(counts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    missing = width - counts.shape[1]
    return np.pad(counts, ((0, 0), (0, missing))) if missing else counts


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
                part[name] if name in part else np.full(size, np.nan, dtype=np.float32)
                for part, size in zip(parts, sizes, strict=True)
            ]
        )
        for name in names
    }


def _dense_index(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    _, index = np.unique(keys, axis=0, return_inverse=True)
    return np.asarray(index, dtype=np.int64).reshape(-1)
