"""Rehearsal: a pass over the same tokens on all ranks, made before each compilation of DeepCompile."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.packed.packing import PackedLayout

SEQUENCE = 256
"""Number of tokens of one sequence of the rehearsal; every model has positions for that many."""


class Rehearsal:
    """Pass over the same tokens on all ranks, which has to come first after each compilation is due.

    A compiler orders operations by the sizes that it sees first. Ranks begin with micro-batches of different sizes, so
    without the rehearsal they would exchange gradients in different orders.

    Args:
        steps: numbers of updates after which something is compiled.
        num_tokens: the number of tokens of the pass.
    """

    def __init__(self, engine: Any, role: RoleModel, steps: list[int], num_tokens: int) -> None:
        self._engine, self._lm = engine, role.lm
        self._steps = list(steps)
        self._num_tokens = num_tokens

    def is_due(self) -> bool:
        """Return True if the next pass compiles something; once for each compilation, then False."""
        if not self._steps or self._engine.global_steps < self._steps[0]:
            return False
        self._steps.pop(0)
        return True

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """Return the hidden states of the rehearsal's tokens: the layers run, the head does not."""
        device = self._lm.device
        offsets = [*range(0, self._num_tokens, SEQUENCE), self._num_tokens]
        layout = PackedLayout(offsets, device)
        tokens = torch.zeros(self._num_tokens, dtype=torch.int64, device=device)
        return (self._lm.hidden(tokens, layout.positions(), layout),)
