"""The columns that a policy loss computes over a whole optimizer step before it is cut into micro-batches."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.contracts.backend import PREPARED, TrainBatch
from rlhf_core.contracts.loss import PreparingLoss, StepColumns
from rlhf_core.errors import PluginError
from rlhf_core.math import pad_columns, unpad


def prepare(loss: PreparingLoss, batch: TrainBatch, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return the columns that ``loss`` prepares for a step, (sum of A,) each, under ``prepared/NAME``.

    Raises:
        PluginError: the loss returned a column that is not (B, A).
    """
    lengths = torch.from_numpy(batch.trajectories.num_actions)
    columns = {
        name: pad_columns(torch.from_numpy(np.ascontiguousarray(batch.columns[name])), lengths)
        for name in ("advantages", "old_logprobs", "rollout_logprobs")
        if name in batch.columns
    }
    values = {name: padded.values for name, padded in columns.items()}
    mask = columns["advantages"].mask
    prepared = loss.prepare(StepColumns(action_mask=mask, seed=seed, **values))
    for name, column in prepared.items():
        if column.shape != mask.shape:
            raise PluginError(
                f"{type(loss).__name__} prepared {name!r} of shape {tuple(column.shape)}; expected {tuple(mask.shape)}"
            )
    return {
        PREPARED + name: unpad(column.detach().float(), mask).numpy()
        for name, column in prepared.items()
    }
