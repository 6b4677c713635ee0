"""Outputs of a role for packed rows: log-probs and entropies with a gradient, statistics, and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import RoleSpec, Statistic, TrainBatch
from rlhf_core.objective import ActionScores, BuiltObjective, BuiltPolicyObjective

from ..heads.action_head import action_scores
from ..heads.statistics import action_statistics, top_tokens
from ..models.role_model import RoleModel
from ..models.vision_lm import VisionLM
from ..rows.batch_columns import ids_of
from ..rows.packed_rows import PackedRows


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


def _as_they_are(results: Tensor) -> Tensor:
    return results
