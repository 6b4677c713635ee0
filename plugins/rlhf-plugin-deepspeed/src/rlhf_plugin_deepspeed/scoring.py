"""Passes of a role that is not trained: with the whole model on every rank, or with weights shared by stage 3.

Both classes have the ``stage``, ``score`` and ``close`` that the training classes have too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlhf_core.contracts import RoleSpec
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.ranks import Ranks

from .config import DeepSpeedConfig
from .partitioned_model import WholeHead
from .zero.zero_training import start_engine


class WholeScoring:
    """Passes of a role that has its whole model on every rank."""

    stage = 0

    def score(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the results of ``work``."""
        return work()

    def close(self) -> None:
        """Do nothing: a whole model leaves nothing behind."""


class SharedScoring:
    """Passes of a role at stage 3, where the weights of each layer are collected when the layer is computed."""

    stage = 3

    def __init__(
        self, role: RoleModel, spec: RoleSpec, config: DeepSpeedConfig, ranks: Ranks
    ) -> None:
        self._engine: Any = start_engine(role, spec, config, ranks, None)
        self._head = WholeHead(role)

    def score(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the results of ``work``; a collective call, so all ranks make equally many."""
        self._head.fetch()
        results: tuple[Tensor, ...] = self._engine.module(work)
        return results

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the model."""
        self._engine.destroy()
