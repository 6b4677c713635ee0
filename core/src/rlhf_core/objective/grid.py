"""Layout of a micro-batch's actions in right-padded rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from .placing import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionGrid:
    """The positions of ``M`` flat values in ``B`` right-padded rows of up to ``A`` actions.

    ``rlhf_core.math.pad_columns`` reads sizes from the device for each column, which makes the host wait; here the
    host knows the sizes already.
    """

    mask: Bool[Tensor, "b a"]
    """True at actions."""
    index: Int64[Tensor, " m"]
    """Position of each value in the flattened grid."""

    @classmethod
    def of(cls, num_actions: NDArray[np.int64], device: torch.device) -> ActionGrid:
        """Return the grid, on ``device``, of sequences with the given numbers of actions (B,)."""
        mask = np.arange(num_actions.max(initial=0)) < num_actions[:, None]  # (B, A)
        index = np.flatnonzero(mask)  # (M,)
        return cls(mask=on_device(mask, device), index=on_device(index, device))

    def pad(self, flat: Shaped[Tensor, "m ..."]) -> Shaped[Tensor, "b a ..."]:
        """Return the values (M, ...) as rows (B, A, ...) with 0 at padding; differentiable."""
        zeros = flat.new_zeros(self.mask.numel(), *flat.shape[1:])  # (B * A, ...)
        return zeros.index_copy(0, self.index, flat).view(*self.mask.shape, *flat.shape[1:])

    def last(self, flat: Shaped[Tensor, "m ..."]) -> Shaped[Tensor, "b ..."]:
        """Return the value (B, ...) at each row's last action; differentiable. Each row has an action."""
        return flat[self.mask.sum(dim=1).cumsum(dim=0) - 1]
