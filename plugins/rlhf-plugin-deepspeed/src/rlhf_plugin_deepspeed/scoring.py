"""A role that is not trained, on this rank: whole, or cut by stage 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlhf_core.contracts import RoleSpec
from rlhf_plugin_local.backend.role_model import RoleModel

from .config import DeepSpeedConfig
from .partitioned_model import WholeHead
from .ranks import Ranks
from .zero_training import start_engine


class WholeScoring:
    """The whole model on every rank."""

    stage = 0

    def score(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what ``work`` computes."""
        return work()

    def close(self) -> None:
        """Nothing is left behind."""


class SharedScoring:
    """Stage 3: each layer's weights are collected when it is computed."""

    stage = 3

    def __init__(
        self, role: RoleModel, spec: RoleSpec, config: DeepSpeedConfig, ranks: Ranks
    ) -> None:
        self._engine: Any = start_engine(role, spec, config, ranks, None)
        self._head = WholeHead(role)

    def score(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what ``work`` computes. All ranks call it equally often."""
        self._head.fetch()
        results: tuple[Tensor, ...] = self._engine.module(work)
        return results

    def close(self) -> None:
        """Take DeepSpeed's hooks off the model."""
        self._engine.destroy()
