"""A first pass that is the same on all ranks, for the compiler to see."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_plugin_local.backend.role_model import RoleModel
from rlhf_plugin_local.packing import PackedLayout

SEQUENCE = 256
"""Tokens of one sequence; no model has room for less."""


class Rehearsal:
    """A pass over the same tokens on all ranks, before the first of each compilation.

    A compiler orders operations by the sizes that it sees first. Ranks begin with micro-batches of different sizes, and
    would send each other gradients in different orders.

    Args:
        steps: updates before which something is compiled.
        num_tokens: of the pass.
    """

    def __init__(self, engine: Any, role: RoleModel, steps: list[int], num_tokens: int) -> None:
        self._engine, self._lm = engine, role.lm
        self._steps = list(steps)
        self._num_tokens = num_tokens

    def is_due(self) -> bool:
        """Whether the next pass is compiled. Says so once for each compilation."""
        if not self._steps or self._engine.global_steps < self._steps[0]:
            return False
        self._steps.pop(0)
        return True

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """Do it: the layers without the head, over as many tokens as a micro-batch may have."""
        device = self._lm.device
        offsets = [*range(0, self._num_tokens, SEQUENCE), self._num_tokens]
        layout = PackedLayout(offsets, device)
        tokens = torch.zeros(self._num_tokens, dtype=torch.int64, device=device)
        return (self._lm.hidden(tokens, layout.positions(), layout),)
