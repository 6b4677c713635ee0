"""The columns of a pass's actions on the device, and the log-probs that a step's passes found."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import TrainBatch, TrajectoryColumns

TEACHER_TOP_IDS = "teacher_top_ids"
TEACHER_TOP_LOGPROBS = "teacher_top_logprobs"


def columns_of(
    batch: TrainBatch, rows: NDArray[np.int64], device: torch.device
) -> dict[str, Tensor]:
    """Return the columns of some rows, (M,) each, and (M, K) for the teacher's most probable tokens."""
    if not len(rows):
        return {}
    index = batch.trajectories.action_index(rows)
    columns: dict[str, NDArray[np.float32]] = dict(batch.columns)
    if batch.teacher_top is not None:
        columns[TEACHER_TOP_LOGPROBS] = batch.teacher_top.logprobs
    flat = {name: torch.from_numpy(column[index]).to(device) for name, column in columns.items()}
    if batch.teacher_top is not None:
        ids = batch.teacher_top.token_ids[index].astype(np.int64)
        flat[TEACHER_TOP_IDS] = torch.from_numpy(ids).to(device)
    return flat


class SeenLogprobs:
    """The policy's log-probs as the forward passes of one step found them."""

    def __init__(self, batch: TrajectoryColumns, *, wanted: bool) -> None:
        self._batch = batch
        self._parts: list[tuple[NDArray[np.int64], Tensor]] | None = [] if wanted else None

    def add(self, rows: NDArray[np.int64], logprobs: Tensor) -> None:
        """Keep what one pass found, if it is wanted."""
        if self._parts is not None:
            self._parts.append((rows, logprobs.detach()))

    @property
    def logprobs(self) -> NDArray[np.float32] | None:
        """(sum of A,) in the order of the batch; read once, after the step."""
        if self._parts is None:
            return None
        out = np.empty(int(self._batch.num_actions.sum()), dtype=np.float32)
        for rows, logprobs in self._parts:
            out[self._batch.action_index(rows)] = logprobs.float().cpu().numpy()
        return out
