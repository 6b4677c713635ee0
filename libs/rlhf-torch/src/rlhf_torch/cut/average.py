"""The moving average of weights whose float32 vectors are cut among ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from ..training.updater import exchanged
from .part_files import CutTraining


def move_average(training: CutTraining, decay: float | None) -> None:
    """Move this rank's part of the average, if one is kept: decay * average + (1 - decay) * weights."""
    if training.ema:
        assert decay is not None
        masters = [vector.detach() for vector in training.masters]
        torch._foreach_lerp_(training.ema, masters, 1.0 - decay)


def holding_average(training: CutTraining) -> AbstractContextManager[None]:
    """Have the model hold the moving average inside of the context, and its own weights again after it; a collective
    call."""
    return exchanged(training.masters, training.ema, training.publish)
