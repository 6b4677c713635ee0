"""What the tests of the off-policy losses share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rlhf_core.contracts import LossInputs

LENGTHS = (6, 5, 3, 1, 0)


def _step(seed: int = 0, *, drift: float = 0.4, padding: float = 0.0) -> LossInputs:
    """Ragged rows in float64; policy, old and rollout differ from each other by normal log-ratios of this size.

    Args:
        padding: what stands at padding, in every column.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    old, policy, rollout, advantages = torch.randn(
        4, *mask.shape, dtype=torch.float64, generator=generator
    )
    old = -0.2 - old.abs()
    columns = {
        "policy_logprobs": (old + drift * policy).clamp(max=-0.01),
        "old_logprobs": old,
        "rollout_logprobs": (old + drift * rollout).clamp(max=-0.01),
        "advantages": advantages,
    }
    return LossInputs(
        action_mask=mask,
        **{name: torch.where(mask, column, padding) for name, column in columns.items()},
    )


def _one_token(policy: float, old: float, rollout: float, advantage: float) -> LossInputs:
    """One row of one token, given by probabilities. The policy's log-prob asks for a gradient."""
    columns = torch.tensor([policy, old, rollout], dtype=torch.float64).log().reshape(3, 1, 1)
    return LossInputs(
        policy_logprobs=columns[0].clone().requires_grad_(),
        old_logprobs=columns[1],
        rollout_logprobs=columns[2],
        advantages=torch.tensor([[advantage]], dtype=torch.float64),
        action_mask=torch.ones(1, 1, dtype=torch.bool),
    )


@pytest.fixture
def step() -> Callable[..., LossInputs]:
    """``_step``."""
    return _step


@pytest.fixture
def one_token() -> Callable[..., LossInputs]:
    """``_one_token``."""
    return _one_token
