"""Rollout batches for the checks of advantage estimators.

Every number belongs to a row's key, not to its place, so that a batch can be permuted, split or padded and still hold
the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_core.contracts.advantage import RewardBatch

WEIGHTS = {"right": 1.0, "style": 0.5}
"""The two rewards that make up a score: score = right + 0.5 style."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a rollout batch."""

    key: int
    """Name of the row, on which alone its drawn columns depend."""
    turns: tuple[int, ...] = (3,)
    """Number of action tokens of each turn."""
    score: float = 0.0
    turn_rewards: tuple[float, ...] = ()
    """Rewards of single turns, on top of the score; empty: no turn has a reward."""
    style: float = 0.0
    group: int = 0
    episode: int | None = None
    """Number of the episode; None: the row's key, so that the row is an episode by itself."""
    truncated: bool = False
    greedy: float = 0.0
    """Score of the greedy episode of the row's prompt; equal in a group."""


def mixed_rows() -> list[Row]:
    """Three prompts with four, three and three samples, not adjacent; several turns, one-token answers, a truncated
    one, an episode of two segments."""
    return [
        Row(key=0, turns=(3,), score=1.0, style=0.5, group=0, greedy=0.4),
        Row(key=4, turns=(2, 3), score=0.0, turn_rewards=(0.5, 0.0), group=1, greedy=1.0),
        Row(key=1, turns=(1,), score=0.0, style=0.2, group=0, greedy=0.4),
        Row(key=2, turns=(5,), score=0.3, style=0.0, group=0, truncated=True, greedy=0.4),
        Row(key=5, turns=(1, 1, 2), score=1.0, style=1.0, group=1, greedy=1.0),
        Row(key=7, turns=(2,), score=1.0, group=2, episode=7, greedy=0.0),
        Row(key=8, turns=(4,), score=1.0, group=2, episode=7, greedy=0.0),
        Row(key=3, turns=(2,), score=0.7, style=0.3, group=0, greedy=0.4),
        Row(key=6, turns=(3, 1), score=0.0, turn_rewards=(0.0, 0.25), group=1, greedy=1.0),
        Row(key=9, turns=(3,), score=0.0, style=0.9, group=2, greedy=0.0),
    ]


def binary_rows() -> list[Row]:
    """Two prompts with four samples each, one turn, right (1) or wrong (0): what most tasks give."""
    scores = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    return [
        Row(key=key, turns=(1 + key % 4,), score=score, group=key // 4, greedy=float(key // 4))
        for key, score in enumerate(scores)
    ]


def reward_batch(
    rows: Sequence[Row],
    needs: frozenset[str],
    *,
    padding: float = 0.0,
    extra_columns: int = 0,
    kl: float | None = None,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
) -> RewardBatch:
    """Return the batch of the rows as a run lays them out, with the columns that ``needs`` names and no others.

    Args:
        padding: number at padding in the columns of numbers.
        extra_columns: number of columns of padding beyond the longest row.
        kl: size of the KL penalty in the reward; None: no penalty.
        scale: scale of values and log-probs.
    """
    lengths = torch.tensor([sum(row.turns) for row in rows])
    mask = torch.arange(int(lengths.max()) + extra_columns) < lengths[:, None]  # (B, A)

    def column(name: str, low: float, high: float) -> Tensor:
        return _column(rows, mask, name, low, high, padding).to(dtype)

    def of_rows(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    penalty = None if kl is None else column("kl", -2 * kl, 0.0)
    token_rewards = torch.where(mask, _token_rewards(rows, mask).to(dtype), padding)
    wants = needs.__contains__
    scores = of_rows([row.score for row in rows])
    style = of_rows([row.style for row in rows])
    return RewardBatch(
        token_rewards=token_rewards if penalty is None else token_rewards + penalty,
        rewards=of_rows([row.score + sum(row.turn_rewards) for row in rows]),
        action_mask=mask,
        group=_dense([row.group for row in rows]),
        episode=_dense([row.key if row.episode is None else row.episode for row in rows]),
        turn=_turns(rows, mask),
        truncated=torch.tensor([row.truncated for row in rows]),
        kl_penalty=penalty,
        values=column("values", -scale, scale) if wants("values") else None,
        rewards_by_name={"right": scores - 0.5 * style, "style": style},
        reward_weights=WEIGHTS,
        final_values=_final_values(rows, scale).to(dtype) if wants("final_values") else None,
        old_logprobs=column("old", -2 * scale, -0.01) if wants("old_logprobs") else None,
        sum_pi_squared=column("squares", 0.05, 0.95) if wants("sum_pi_squared") else None,
        greedy_rewards=of_rows([row.greedy for row in rows]) if wants("greedy_rewards") else None,
        observation=_observations(rows, mask) if wants("observations") else None,
    )


def permuted(batch: RewardBatch, order: Tensor) -> RewardBatch:
    """Return the batch with its rows in another order."""
    changes: dict[str, Any] = {
        item.name: value[order]
        for item in fields(batch)
        if isinstance(value := getattr(batch, item.name), Tensor)
    }
    named = {name: value[order] for name, value in batch.rewards_by_name.items()}
    return replace(batch, **changes, rewards_by_name=named)


def tensors_of(batch: object) -> dict[str, Tensor]:
    """Return the tensors of a dataclass by name, those in mappings included."""
    found: dict[str, Tensor] = {}
    for item in fields(batch):  # type: ignore[arg-type]  # a dataclass by contract
        value = getattr(batch, item.name)
        if isinstance(value, Tensor):
            found[item.name] = value
        elif isinstance(value, dict):
            found |= {
                f"{item.name}/{key}": one for key, one in value.items() if isinstance(one, Tensor)
            }
    return found


def _draw(name: str, key: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1 + key * 1009 + sum(map(ord, name)))
    return torch.rand(size, generator=generator, dtype=torch.float64)


def _column(
    rows: Sequence[Row], mask: Tensor, name: str, low: float, high: float, padding: float
) -> Tensor:
    column = torch.full(mask.shape, padding, dtype=torch.float64)
    for index, row in enumerate(rows):
        size = sum(row.turns)
        column[index, :size] = low + (high - low) * _draw(name, row.key, size)
    return column


def _token_rewards(rows: Sequence[Row], mask: Tensor) -> Tensor:
    column = torch.zeros(mask.shape, dtype=torch.float64)
    for index, row in enumerate(rows):
        end = 0
        for turn, size in enumerate(row.turns):
            end += size
            column[index, end - 1] += row.turn_rewards[turn] if row.turn_rewards else 0.0
        column[index, end - 1] += row.score
    return column


def _turns(rows: Sequence[Row], mask: Tensor) -> Tensor:
    turn = torch.zeros(mask.shape, dtype=torch.int64)
    for index, row in enumerate(rows):
        sizes = torch.tensor(row.turns)
        turn[index, : sum(row.turns)] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return turn


def _final_values(rows: Sequence[Row], scale: float) -> Tensor:
    drawn = [float(_draw("final", row.key, 1)) * scale if row.truncated else 0.0 for row in rows]
    return torch.tensor(drawn, dtype=torch.float64)


def _observations(rows: Sequence[Row], mask: Tensor) -> Tensor:
    """Rows with keys of one parity read the same in later turns."""
    turn = _turns(rows, mask)
    texts = torch.zeros(mask.shape, dtype=torch.int64)
    for index, row in enumerate(rows):
        later = turn[index] > 0
        texts[index] = row.group * 1000 + turn[index] * 10 + later * (row.key % 2)
    _, dense = torch.unique(torch.where(mask, texts, texts.min()), return_inverse=True)
    return torch.where(mask, dense, 0)


def _dense(keys: Sequence[int]) -> Tensor:
    index: Tensor = torch.unique(torch.tensor(keys), return_inverse=True)[1]
    return index
