"""What the tests of the contributed losses share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlhf_core.contracts import LossInputs, StepColumns

LENGTHS = (6, 5, 3, 1, 0)


def _random_step(seed: int = 0, *, drift: float = 0.3, one_advantage: bool = False) -> LossInputs:
    """Five ragged rows in float64; policies differ by a normal log-ratio of this size.

    Args:
        one_advantage: the same at all tokens of a row.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    old, noise, advantages, rollout = torch.randn(
        4, *mask.shape, dtype=torch.float64, generator=generator
    )
    if one_advantage:
        advantages = advantages[:, :1].expand_as(old).clone()
    return LossInputs(
        policy_logprobs=old - 2 + drift * noise,
        old_logprobs=old - 2,
        advantages=advantages,
        action_mask=mask,
        rollout_logprobs=old - 2 + drift * rollout,
    )


def _prepared(loss: object, inputs: LossInputs, seed: int = 3) -> dict[str, Tensor]:
    """What the loss prepares for the rows of ``inputs`` as one step; nothing if it does not."""
    if not hasattr(loss, "prepare"):
        return {}
    step = StepColumns(
        advantages=inputs.advantages,
        action_mask=inputs.action_mask,
        old_logprobs=inputs.old_logprobs,
        rollout_logprobs=inputs.rollout_logprobs,
        seed=seed,
    )
    return dict(loss.prepare(step))


@pytest.fixture
def random_step() -> Callable[..., LossInputs]:
    """``_random_step``."""
    return _random_step


@pytest.fixture
def prepared() -> Callable[..., dict[str, Tensor]]:
    """``_prepared``."""
    return _prepared
