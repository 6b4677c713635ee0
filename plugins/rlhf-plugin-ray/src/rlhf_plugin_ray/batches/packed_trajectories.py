"""Finished trajectories as a few flat arrays, the form in which a rollout worker sends them to the driver.

``unpack(pack(rows))`` gives equal trajectories in the same order, whose arrays are views of the flat arrays. Ray keeps
large arrays in shared memory, so on one machine sampled tokens are not copied on their way to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import Stop, Trajectory, Turn, Uid
from rlhf_core.media import MediaSpan

STOPS = tuple(Stop)
"""All reasons for which a turn ends, in the order in which ``turn_stops`` counts them."""


ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One optional number for each row."""

    values: NDArray[np.float64]
    """(B,) numbers, in the precision of Python's floats; 0 where a row has none."""
    present: NDArray[np.bool_]
    """(B,) True where the row has a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTrajectories:
    """Trajectories as flat arrays. Axes as in ``rlhf_core.batch.trajectory``; ``U`` is the number of all turns, ``S``
    that of all step rewards."""

    uid: NDArray[np.int64]
    """(B, 4) names of the episodes."""
    token_ids: NDArray[np.int32]
    """(sum of T,) tokens of all rows."""
    num_tokens: NDArray[np.int64]
    """(B,) number of tokens of each row."""
    rollout_logprobs: NDArray[np.float32]
    """(sum of A,) log-probs of the actions under the engine's weights."""
    weight_version: NDArray[np.int32]
    """(sum of A,) version of the weights that sampled each action."""
    num_turns: NDArray[np.int64]
    """(B,) number of turns of each row."""
    turn_spans: NDArray[np.int64]
    """(U, 2) start and end of each turn in its row's tokens. The action mask follows from the spans."""
    turn_stops: NDArray[np.uint8]
    """(U,) index of the turn's reason to end in ``STOPS``."""
    turn_rewards: NDArray[np.float64]
    """(U,) reward of each turn."""
    turn_places: NDArray[np.int64]
    """(U,) place of each turn in its episode."""
    num_steps: NDArray[np.int64]
    """(B,) number of step rewards of each row."""
    step_actions: NDArray[np.int64]
    """(S,) index of the action on which each step reward stands."""
    step_rewards: NDArray[np.float64]
    """(S,) step rewards."""
    num_media: NDArray[np.int64]
    """(B,) number of images of each row."""
    media: tuple[MediaSpan, ...]
    """(I,) images of all rows with the places of their tokens: references, no pixels."""
    is_final: NDArray[np.bool_]
    """(B,) True for the segments in which their episodes ended."""
    reward: Reported
    rewards: Mapping[str, Reported]
    metrics: Mapping[str, Reported]


def pack(rows: Sequence[Trajectory]) -> PackedTrajectories:
    """Return the trajectories as flat arrays, in the same order."""
    turns = [turn for row in rows for turn in row.turns]
    steps = [step for row in rows for step in row.step_rewards]
    return PackedTrajectories(
        uid=np.array([row.uid for row in rows], dtype=np.int64).reshape(len(rows), 4),
        token_ids=_joined([row.token_ids for row in rows], np.int32),
        num_tokens=np.array([len(row.token_ids) for row in rows], dtype=np.int64),
        rollout_logprobs=_joined([row.rollout_logprobs for row in rows], np.float32),
        weight_version=_joined([row.weight_version for row in rows], np.int32),
        num_turns=np.array([len(row.turns) for row in rows], dtype=np.int64),
        turn_spans=np.array([(t.start, t.end) for t in turns], dtype=np.int64).reshape(-1, 2),
        turn_stops=np.array([STOPS.index(turn.stop) for turn in turns], dtype=np.uint8),
        turn_rewards=np.array([turn.reward for turn in turns], dtype=np.float64),
        turn_places=np.array([turn.place for turn in turns], dtype=np.int64),
        num_steps=np.array([len(row.step_rewards) for row in rows], dtype=np.int64),
        step_actions=np.array([action for action, _ in steps], dtype=np.int64),
        step_rewards=np.array([part for _, part in steps], dtype=np.float64),
        num_media=np.array([len(row.media) for row in rows], dtype=np.int64),
        media=tuple(span for row in rows for span in row.media),
        is_final=np.array([row.is_final for row in rows], dtype=bool),
        reward=_reported([row.reward for row in rows]),
        rewards=_named([row.rewards for row in rows]),
        metrics=_named([row.metrics for row in rows]),
    )


def unpack(packed: PackedTrajectories) -> list[Trajectory]:
    """Return the trajectories; their arrays are views of the flat arrays, and read-only where these are."""
    rows = []
    token = action = turn = step = image = 0
    steps = tuple(zip(packed.step_actions.tolist(), packed.step_rewards.tolist(), strict=True))
    turns = [
        Turn(start=start, end=end, reward=reward, stop=STOPS[stop], place=place)
        for (start, end), reward, stop, place in zip(
            packed.turn_spans.tolist(),
            packed.turn_rewards.tolist(),
            packed.turn_stops.tolist(),
            packed.turn_places.tolist(),
            strict=True,
        )
    ]
    sizes = zip(
        packed.uid.tolist(),
        packed.num_tokens.tolist(),
        packed.num_turns.tolist(),
        packed.num_steps.tolist(),
        packed.num_media.tolist(),
        strict=True,
    )
    for index, (uid, num_tokens, num_turns, num_steps, num_media) in enumerate(sizes):
        own = tuple(turns[turn : turn + num_turns])
        num_actions = sum(part.end - part.start for part in own)
        rows.append(
            Trajectory(
                uid=Uid(*uid),
                token_ids=packed.token_ids[token : token + num_tokens],
                action_mask=_mask(num_tokens, own),
                rollout_logprobs=packed.rollout_logprobs[action : action + num_actions],
                weight_version=packed.weight_version[action : action + num_actions],
                turns=own,
                reward=_number(packed.reward, index),
                rewards=_numbers(packed.rewards, index),
                step_rewards=steps[step : step + num_steps],
                media=packed.media[image : image + num_media],
                is_final=bool(packed.is_final[index]),
                metrics=_numbers(packed.metrics, index),
            )
        )
        token, action = token + num_tokens, action + num_actions
        turn, step, image = turn + num_turns, step + num_steps, image + num_media
    return rows


def _mask(num_tokens: int, turns: Iterable[Turn]) -> NDArray[np.bool_]:
    mask = np.zeros(num_tokens, dtype=bool)
    for turn in turns:
        mask[turn.start : turn.end] = True
    return mask


def _joined(parts: Sequence[NDArray[ScalarT]], dtype: type[ScalarT]) -> NDArray[ScalarT]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)


def _reported(numbers: Sequence[float | None]) -> Reported:
    return Reported(
        values=np.array([number or 0.0 for number in numbers], dtype=np.float64),
        present=np.array([number is not None for number in numbers], dtype=bool),
    )


def _named(rows: Sequence[Mapping[str, float]]) -> dict[str, Reported]:
    names = sorted({name for row in rows for name in row})
    return {name: _reported([row.get(name) for row in rows]) for name in names}


def _number(reported: Reported, row: int) -> float | None:
    return float(reported.values[row]) if reported.present[row] else None


def _numbers(named: Mapping[str, Reported], row: int) -> dict[str, float]:
    return {
        name: float(reported.values[row])
        for name, reported in named.items()
        if reported.present[row]
    }
