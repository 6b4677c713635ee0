"""Rows of one pass that a rank computes by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.objective import ActionScores

from ..rows.packed_rows import PackedRows, pack_rows
from .images import PassImages
from .passes import Rows, rows_or_stand_in


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Rows of a pass of which this rank computes all results: the simplest ``LaidRows``."""

    packed: PackedRows

    def own(self, column: Tensor) -> Tensor:
        return column

    def whole(self, own: Tensor) -> Tensor:
        return own

    def whole_scores(self, own: ActionScores) -> ActionScores:
        return own


def pack_pass(
    batch: TrajectoryColumns,
    rows: Rows,
    device: torch.device,
    *,
    share_prompts: bool = False,
    at_actions: bool = False,
    images: PassImages | None = None,
) -> PackedRows:
    """Return the rows of a pass over ``rows``, packed; of a stand-in if ``rows`` is empty.

    Args:
        share_prompts: see ``pack_rows``.
        at_actions: read the hidden states at the actions, not before them.
        images: reads the images of the rows; None: the model reads text alone.
    """
    part = rows_or_stand_in(batch, rows)
    packed = pack_rows(
        part,
        np.arange(len(part)),
        device,
        share_prompts=share_prompts,
        at_actions=at_actions,
        reader=None if images is None else images.reader,
    )
    if not len(rows):
        packed = replace(packed, counts=np.zeros(len(packed.input_ids), dtype=np.float32))
    return packed if images is None else images.completed(packed)
