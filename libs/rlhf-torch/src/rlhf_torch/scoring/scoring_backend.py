"""The scoring half of ``TrainBackend``: the same for all backends that fill ``OpenRole`` with their own passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import RoleSpec, Statistic, TopTokens, TrajectoryColumns

from ..models.modeling import CausalLM
from ..models.role_model import RoleModel
from .scores import OpenRole


class ScoringBackend:
    """The calls of ``TrainBackend`` that need no gradient, by the role that ``setup`` of a subclass has opened."""

    _spec: RoleSpec
    _open: OpenRole | None = None
    _weights_are_out = False
    """True between ``offload`` and ``reload``: no tensor of the model may be touched, not even read."""
    _state_is_out = False
    """True between ``offload`` and ``reload``: neither may the state of training."""

    @property
    def _role(self) -> OpenRole:
        assert self._open is not None, "setup comes first"
        if self._weights_are_out:
            raise PluginError(
                "the model is in host memory since offload; expected reload before other calls",
                code="training/offloaded",
            )
        return self._open

    def _require_state(self) -> None:
        """Raise if the state of training is out."""
        if self._state_is_out:
            raise PluginError(
                "the state of training is in host memory since offload; expected reload before other calls",
                code="training/offloaded",
            )

    def _only_scores(self) -> PluginError:
        """Return the error of a step of a role without an objective."""
        return PluginError(
            f"the {self._spec.role} only scores; it has no objective to train on",
            code="training/role-only-scores",
        )

    def _require_average(self) -> None:
        """Raise if the role keeps no moving average."""
        if self._spec.objective is None or self._spec.ema_decay is None:
            raise ConfigError(
                f"the {self._spec.role} keeps no moving average; set --actor.ema",
                code="training/no-moving-average",
            )

    @property
    def _model(self) -> RoleModel:
        return self._role.model

    @property
    def _lm(self) -> CausalLM:
        return self._model.lm

    def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return the log-prob of each action, (sum of A,) in nats, after the temperature. No gradient."""
        return self._role.scores.logprobs(batch)

    def base_logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return the log-prob of each action, (sum of A,) in nats, under the model as its adapter began. No gradient.

        Raises:
            PluginError: the role has no adapter.
        """
        with self._model.without_adapter():
            return self._role.scores.logprobs(batch)

    def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        """Return the named statistics, (sum of A,) each, after the temperature, from one pass. No gradient."""
        return self._role.scores.statistics(batch, names)

    def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """Return the k most probable tokens at each action, (sum of A, k), after the temperature. No gradient.

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        return self._role.scores.top_tokens(batch, k)

    def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return the value of the state before each action, or the score at each action, (sum of A,). No gradient.

        Raises:
            PluginError: the role has neither a value head nor a score head.
        """
        return self._role.scores.values(batch)
