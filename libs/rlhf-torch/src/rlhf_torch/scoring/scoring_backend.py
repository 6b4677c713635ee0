"""Outputs of a role: for packed rows, as losses read them, and for whole batches, which is the scoring half of
``TrainBackend``, the same for all backends that fill ``OpenRole`` and have a way of their own through the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import RoleSpec, Statistic, TopTokens, TrainBatch, TrajectoryColumns
from rlhf_core.objective import ActionScores, BuiltObjective, BuiltPolicyObjective

from ..heads.action_head import action_scores
from ..heads.statistics import action_statistics, top_tokens
from ..models.modeling import CausalLM
from ..models.role_model import RoleModel
from ..models.vision_lm import VisionLM
from ..rows.batch_columns import ids_of
from ..rows.packed_rows import PackedRows, refuse_images

Floats = NDArray[np.float32]
Score = Callable[[PackedRows], tuple[Tensor, ...]]
"""A function from packed rows to results, (M, ...) each."""


class RoleReader:
    """Model outputs of a role at the M actions of packed rows, after the temperature of its spec.

    Args:
        chunk: number of actions whose logits are in memory at once.
    """

    def __init__(self, role: RoleModel, spec: RoleSpec, chunk: int) -> None:
        self._role, self._spec, self._chunk = role, spec, chunk
        # Read now: a backend that cuts weights over ranks (ZeRO stage 3) leaves parameters without a shape later.
        self._vocab_size = role.lm.vocab_size
        self._num_sampled = role.lm.num_sampled
        self.sees = isinstance(role.lm, VisionLM)
        """Whether the model reads images."""
        self._with_mean = False

    def serve(self, objective: BuiltObjective) -> None:
        """Give what the role's objective wants of each action from now on."""
        if isinstance(objective, BuiltPolicyObjective):
            self._with_mean = objective.components.wants_mean_logprobs

    def hidden(self, rows: PackedRows) -> Float[Tensor, "U D"]:
        """Return the hidden states (U, D) of the tokens that are read for the different actions."""
        if (routing := self._role.routing) is not None:
            routing.follow(rows.routes)
        hidden = self._role.lm.hidden(rows.input_ids, rows.position_ids, rows.layout, rows.images)
        if routing is not None:
            routing.take(rows.counts_on_device())
            if not hidden.requires_grad:  # no backward pass computes layers again
                routing.follow(None)
        return hidden.index_select(0, rows.predictors)

    def action_scores(
        self, rows: PackedRows, others: Int[Tensor, "M k"] | None = None
    ) -> ActionScores:
        """Return log-probs and entropies (M,), log-probs of the ids ``others`` (M, k), and the mean log-prob over the
        vocabulary (M,) if the objective wants it; all with gradients."""
        hidden, targets, each = self.hidden(rows), rows.targets, rows.each
        if others is not None:
            # Sequences that share an action may ask for other ids there.
            hidden, targets, each = each(hidden), each(targets), _as_they_are
        scores = action_scores(
            self._role.lm,
            hidden,
            targets,
            temperature=self._spec.temperature,
            chunk=self._chunk,
            others=others,
            others_temperature=self._spec.top_temperature,
            with_mean=self._with_mean,
        )
        means = scores.mean_logprobs
        return ActionScores(
            logprobs=each(scores.logprobs),
            entropies=each(scores.entropies),
            others=scores.others,
            mean_logprobs=None if means is None else each(means),
        )

    def values(self, rows: PackedRows) -> Float[Tensor, " M"]:
        """Return the value of the state before each action, or the score at each action, (M,) in float32, with a
        gradient.

        Raises:
            PluginError: the role has neither a value head nor a score head.
        """
        if self._role.value_head is None:
            raise PluginError(
                f"the {self._spec.role} has no value head; only a critic has values",
                code="model/no-value-head",
            )
        return rows.each(self._role.values(self.hidden(rows)))

    def with_balance(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss of the last pass of an update together with what its routes to experts add."""
        routing = self._role.routing
        return loss if routing is None else routing.with_balance(loss)

    def statistics(self, rows: PackedRows, names: Sequence[Statistic]) -> Float[Tensor, "M names"]:
        """Return the named statistics (M, len(names)) of each action's distribution."""
        return rows.each(
            action_statistics(
                self._role.lm,
                self.hidden(rows),
                rows.targets,
                names,
                temperature=self._spec.temperature,
                chunk=self._chunk,
            )
        )

    def top_tokens(
        self, rows: PackedRows, k: int
    ) -> tuple[Int[Tensor, "M {k}"], Float[Tensor, "M {k}"]]:
        """Return ids and log-probs (M, k) of the k most probable tokens at each action, highest first."""
        token_ids, logprobs = top_tokens(
            self._role.lm,
            self.hidden(rows),
            k,
            temperature=self._spec.top_temperature or self._spec.temperature,
            chunk=self._chunk,
        )
        return rows.each(token_ids), rows.each(logprobs)

    def check_vocabulary(self, k: int) -> None:
        """Refuse a k that is larger than the vocabulary.

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        if k > self._num_sampled:
            raise ConfigError(
                f"the vocabulary of the {self._spec.role} has {self._num_sampled} tokens; {k} of them were asked for",
                code="model/small-vocabulary",
            )

    def check(self, batch: TrainBatch) -> None:
        """Refuse the rows of an update that the model cannot be trained on.

        Raises:
            PluginError: see ``check_ids``; or the role follows routes of an engine, and no row has any.
        """
        self.check_ids(*ids_of(batch))
        routing = self._role.routing
        follows = routing is not None and routing.choices is not None and len(batch.trajectories)
        if follows and batch.trajectories.tokens.read().routes is None:
            raise PluginError(
                f"the {self._spec.role} is to follow the engine's routes, and the samples have none: the rollout "
                "executor dropped Completion.expert_routes. Record requests in rlhf_episodes.EpisodeGraph, or leave "
                "algo.correction.replay_routes out",
                code="rollout/no-routes",
            )

    def check_ids(self, *token_ids: NDArray[np.int32]) -> None:
        """Refuse ids for which the model has no row; a GPU would read others' numbers, or end the process.

        Raises:
            PluginError: names the first of them.
        """
        for ids in token_ids:
            wrong = (ids < 0) | (ids >= self._vocab_size)
            if wrong.any():
                raise PluginError(
                    f"token id {ids[wrong].flat[0]} is outside of the vocabulary of the {self._spec.role} "
                    f"{self._spec.model_path}, which has {self._vocab_size} rows. Expected a model with the "
                    "run's tokenizer",
                    code="rollout/unknown-token",
                )


class OpenRole(NamedTuple):
    """A role that a backend has loaded. Dropping this frees the model."""

    model: RoleModel
    reader: RoleReader

    @classmethod
    def of(cls, model: RoleModel, spec: RoleSpec, chunk: int) -> OpenRole:
        """Open a role; arguments as those of ``RoleReader``."""
        return cls(model, RoleReader(model, spec, chunk))


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

    def _score(self, batch: TrajectoryColumns, score: Score) -> list[Floats]:
        """Return the results of ``score`` for all rows of a batch, without a gradient: (sum of A, ...) each, in the
        order of the batch's actions."""
        raise NotImplementedError

    def _checked_score(self, batch: TrajectoryColumns, score: Score) -> list[Floats]:
        reader = self._role.reader
        if not reader.sees:
            # First: the ids of their places are likely to be none of the model's.
            refuse_images(batch)
        reader.check_ids(batch.token_ids)
        return self._score(batch, score)

    def logprobs(self, batch: TrajectoryColumns) -> Floats:
        """Return the log-prob of each action, (sum of A,) in nats, after the temperature. No gradient."""
        return self.statistics(batch, ["logprobs"])["logprobs"]

    def base_logprobs(self, batch: TrajectoryColumns) -> Floats:
        """Return the log-prob of each action, (sum of A,) in nats, under the role's own reference, else under the model
        as its adapter began. No gradient.

        Raises:
            PluginError: the role has neither.
        """
        held = self._holding_reference()
        if held is None:
            with self._model.without_adapter():
                return self.logprobs(batch)
        with self._model.choosing(), held:
            return self.logprobs(batch)

    def _holding_reference(self) -> AbstractContextManager[None] | None:
        """Return a context in which the model holds the role's own reference; None: the role keeps none."""
        return None

    def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, Floats]:
        """Return the named statistics, (sum of A,) each, after the temperature, from one pass. No gradient."""
        reader = self._role.reader
        (columns,) = self._checked_score(batch, lambda rows: (reader.statistics(rows, names),))
        return {name: np.ascontiguousarray(columns[:, i]) for i, name in enumerate(names)}

    def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """Return the k most probable tokens at each action, (sum of A, k), after the temperature. No gradient.

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        reader = self._role.reader
        reader.check_vocabulary(k)
        token_ids, logprobs = self._checked_score(batch, lambda rows: reader.top_tokens(rows, k))
        return TopTokens(token_ids=token_ids.astype(np.int32), logprobs=logprobs)

    def values(self, batch: TrajectoryColumns) -> Floats:
        """Return the value of the state before each action, or the score at each action, (sum of A,). No gradient.

        Raises:
            PluginError: the role has neither a value head nor a score head.
        """
        reader = self._role.reader
        (values,) = self._checked_score(batch, lambda rows: (reader.values(rows),))
        return values


def _as_they_are(results: Tensor) -> Tensor:
    return results
