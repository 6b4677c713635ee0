"""A training backend as far as it scores: the same for all that open a role and have their own way through its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import Statistic, TopTokens, TrajectoryColumns

from ..models.modeling import CausalLM
from ..models.role_model import RoleModel
from .scores import OpenRole


class ScoringBackend:
    """Scores with the role that ``setup`` of a subclass has opened."""

    _open: OpenRole | None = None

    @property
    def _role(self) -> OpenRole:
        assert self._open is not None, "setup comes first"
        return self._open

    @property
    def _model(self) -> RoleModel:
        return self._role.model

    @property
    def _lm(self) -> CausalLM:
        return self._model.lm

    def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) log-probability of each action, after the temperature. No gradient."""
        return self._role.scores.logprobs(batch)

    def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        """(sum of A,) each, after the temperature, in one pass. No gradient."""
        return self._role.scores.statistics(batch, names)

    def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """The k most probable tokens at each action, after the temperature. No gradient.

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        return self._role.scores.top_tokens(batch, k)

    def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) value of the state before each action. No gradient."""
        return self._role.scores.values(batch)
