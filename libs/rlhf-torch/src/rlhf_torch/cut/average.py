"""The moving average of weights whose float32 vectors are cut among ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from .part_files import CutTraining


def move_average(training: CutTraining, decay: float | None) -> None:
    """Move this rank's part of the average, if one is kept: decay * average + (1 - decay) * weights."""
    if training.ema:
        assert decay is not None
        masters = [vector.detach() for vector in training.masters]
        torch._foreach_lerp_(training.ema, masters, 1.0 - decay)


@contextmanager
def holding_average(training: CutTraining) -> Iterator[None]:
    """Have the model hold the moving average inside of the context, and its own weights again after it; a collective
    call."""
    own = [vector.detach().clone() for vector in training.masters]
    _hold(training, training.ema)
    try:
        yield
    finally:
        _hold(training, own)


def _hold(training: CutTraining, values: Sequence[Tensor]) -> None:
    for vector, value in zip(training.masters, values, strict=True):
        vector.detach().copy_(value)
    training.publish()
