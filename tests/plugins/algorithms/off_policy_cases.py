"""What the tests of corrections and of losses share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rlhf_core.contracts import Correction, LossInputs
from rlhf_plugin_algorithms.corrections.importance import Importance, ImportanceConfig

LENGTHS = (6, 5, 3, 1, 0)


class Case(NamedTuple):
    """Log-probs of one batch."""

    old: Tensor
    rollout: Tensor
    mask: Tensor


def _effect(result: Correction) -> Tensor:
    """What a token's loss is multiplied with in the end."""
    return torch.where(result.keep, result.weights, 0.0)


def _correct(case: Case, **options: object) -> Correction:
    """Apply ``importance`` with these options."""
    return Importance(ImportanceConfig.model_validate(options))(*case)


def _drawn(
    lengths: tuple[int, ...], *, drift: float, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Case:
    """Return log-probs that differ by up to ``drift`` nats per token, rows of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    old, step = (torch.rand(mask.shape, generator=generator, dtype=torch.float64) for _ in "ab")
    old = -0.1 - 3 * old
    rollout = (old - drift * (2 * step - 1)).clamp(max=-1e-3)
    return Case(
        torch.where(mask, old, 0.0).to(dtype), torch.where(mask, rollout, 0.0).to(dtype), mask
    )


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
def measured() -> Case:
    """The batch on which OpenRLHF 0.11.2 was measured: rows of 3 and 2 tokens.

    Token ratios 1.5, 3, 0.4 and 1, 0.9.
    """
    mask = torch.tensor([[True, True, True], [True, True, False]])
    old = torch.tensor([[0.6, 0.6, 0.2], [0.5, 0.45, 1.0]], dtype=torch.float64).log()
    rollout = torch.tensor([[0.4, 0.2, 0.5], [0.5, 0.5, 1.0]], dtype=torch.float64).log()
    return Case(old, rollout, mask)


@pytest.fixture
def effect() -> Callable[[Correction], Tensor]:
    """``_effect``."""
    return _effect


@pytest.fixture
def correct() -> Callable[..., Correction]:
    """``_correct``."""
    return _correct


@pytest.fixture
def drawn() -> Callable[..., Case]:
    """``_drawn``."""
    return _drawn


@pytest.fixture
def step() -> Callable[..., LossInputs]:
    """``_step``."""
    return _step


@pytest.fixture
def one_token() -> Callable[..., LossInputs]:
    """``_one_token``."""
    return _one_token
