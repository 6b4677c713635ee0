"""Log-probs of whole answers."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.contracts import TrajectoryColumns


def answer_sums(rows: TrajectoryColumns, logprobs: NDArray[np.float32]) -> torch.Tensor:
    """Return the log-prob of each row's whole answer, (B,), given that of each of its tokens, (sum of A,), in nats."""
    return torch.from_numpy(np.add.reduceat(logprobs, rows.action_offsets[:-1]))
