"""What the tests of the corrections share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rlhf_core.contracts import Correction
from rlhf_plugin_offpolicy.corrections.components import ImportanceCorrection
from rlhf_plugin_offpolicy.corrections.config import ImportanceConfig


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
    return ImportanceCorrection(ImportanceConfig.model_validate(options))(*case)


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
