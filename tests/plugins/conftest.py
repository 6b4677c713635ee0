"""What the tests of several plugins share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from rlhf_core.contracts import RewardBatch
from rlhf_testing.tiny import FAMILIES, write_tiny_model

Turns = Sequence[tuple[int, float]]


def _reward_batch(
    rows: Sequence[Turns],
    group: Sequence[int],
    episode: Sequence[int] | None = None,
    *,
    kl_penalty: float | None = None,
    padding: float = 0.0,
    extra_columns: int = 0,
    dtype: torch.dtype = torch.float32,
) -> RewardBatch:
    """Build a batch from each row's turns, as pairs of (action tokens, reward).

    Args:
        kl_penalty: the same at every token; it is added to the token rewards.
        padding: what stands at padding.
        extra_columns: padding beyond the longest row.
    """
    lengths = torch.tensor([sum(tokens for tokens, _ in turns) for turns in rows])
    mask = torch.arange(int(lengths.max()) + extra_columns) < lengths[:, None]
    token_rewards = torch.where(mask, torch.zeros((), dtype=dtype), padding)
    turn = torch.zeros_like(mask, dtype=torch.int64)
    for row, turns in enumerate(rows):
        end = 0
        for index, (tokens, reward) in enumerate(turns):
            turn[row, end : end + tokens] = index
            end += tokens
            token_rewards[row, end - 1] = reward
    penalty = None
    if kl_penalty is not None:
        penalty = torch.where(mask, torch.full((), kl_penalty, dtype=dtype), padding)
        token_rewards = token_rewards + penalty
    return RewardBatch(
        token_rewards=token_rewards,
        rewards=torch.tensor([sum(reward for _, reward in turns) for turns in rows], dtype=dtype),
        action_mask=mask,
        group=torch.tensor(group),
        episode=torch.arange(len(rows)) if episode is None else torch.tensor(episode),
        turn=turn,
        truncated=torch.zeros(len(rows), dtype=torch.bool),
        kl_penalty=penalty,
    )


@pytest.fixture
def make_reward_batch() -> Callable[..., RewardBatch]:
    """``_reward_batch``."""
    return _reward_batch


@pytest.fixture
def golden_batch() -> RewardBatch:
    """Two prompts with two samples each: rewards 1, 0 and 1, 1 for responses of 2, 3, 1 and 2 tokens."""
    return _reward_batch([[(2, 1.0)], [(3, 0.0)], [(1, 1.0)], [(2, 1.0)]], group=[0, 0, 1, 1])


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models of every family, written once."""
    root = tmp_path_factory.mktemp("models")
    return {family: write_tiny_model(root / family, family) for family in FAMILIES}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other processes share the cores, and small tensors gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
