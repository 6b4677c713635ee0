"""The DeepSpeed training backend: one object per rank and role.

All ranks make the same calls in the same order, each with its own rows. A call returns what belongs to the rank's rows;
metrics are the rank's share, to be merged over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import (
    Metric,
    Metrics,
    PolicyObjective,
    RoleSpec,
    Statistic,
    StepOutcome,
    StepPlan,
    TopTokens,
    TrainBatch,
    TrajectoryColumns,
    ValueObjective,
)
from rlhf_core.plugins import Plugins
from rlhf_plugin_local.backend.action_columns import ActionColumns
from rlhf_plugin_local.backend.action_head import ActionScores, action_scores, default_chunk
from rlhf_plugin_local.backend.device import choose_device
from rlhf_plugin_local.backend.metric_reading import read_metrics
from rlhf_plugin_local.backend.packed_rows import PackedRows
from rlhf_plugin_local.backend.policy_objective import policy_objective, supervised_objective
from rlhf_plugin_local.backend.policy_terms import PolicyTerms
from rlhf_plugin_local.backend.role_model import RoleModel
from rlhf_plugin_local.backend.statistics import action_statistics, top_tokens
from rlhf_plugin_local.backend.value_objective import value_objective
from rlhf_plugin_local.checksum import checksum_of
from rlhf_plugin_local.modeling import CausalLM

from .columns import TEACHER_TOP_IDS, SeenLogprobs, columns_of
from .config import DeepSpeedConfig
from .export import export_role
from .loading import load_role
from .offloading import Offloading
from .partitioned_model import values_of
from .passes import Rows, agreed_passes, nothing, packed_pass
from .ranks import Ranks, join, own_device
from .replicated_training import ReplicatedTraining
from .scoring import SharedScoring, WholeScoring
from .state_files import load_training, save_training
from .weights import buckets_of, served_weights
from .zero_training import ZeroTraining

Training = ZeroTraining | ReplicatedTraining


class DeepSpeedBackend:
    """One role's model on this rank, and its part of the training state if it is trained."""

    def __init__(self, config: DeepSpeedConfig) -> None:
        self._config = config
        self._model: RoleModel
        self._ranks: Ranks
        self._training: Training | None = None
        self._scoring: Training | WholeScoring | SharedScoring | None = None
        self._terms: PolicyTerms | None = None
        self._offloading: Offloading | None = None

    def setup(self, spec: RoleSpec, plugins: Plugins) -> None:
        """Meet the other ranks, load the model, make the optimizer.

        Raises:
            ConfigError: a model that cannot be loaded, a trained role without an optimizer, or an environment that
                does not name the other ranks.
            PluginError: an architecture, adapter or optimizer that cannot be used.
        """
        self._spec = spec
        self._device = own_device(choose_device(self._config.device))
        self._ranks = join(self._device)
        self._model = load_role(spec, self._config, plugins, self._device)
        # Read now: stage 3 leaves parameters without a shape.
        self._vocab_size = self._lm.vocab_size
        self._chunk = self._config.logits_chunk or default_chunk(self._device, self._vocab_size)
        if spec.objective is not None:
            self._training = self._scoring = self._start_training(plugins)
        elif self._config.zero_stage == 3:
            self._scoring = SharedScoring(self._model, spec, self._config, self._ranks)
        else:
            self._scoring = WholeScoring()

    def _start_training(self, plugins: Plugins) -> Training:
        spec = self._spec
        if isinstance(spec.objective, PolicyObjective):
            self._terms = PolicyTerms.build(spec.objective, plugins)
        elif spec.head != "value":
            raise ConfigError(f"the {spec.role} has a value objective but no value head")
        if spec.optimizer is None:
            raise ConfigError(f"the {spec.role} is trained but has no optimizer")
        optimizer = plugins.build(spec.optimizer)
        if self._config.zero_stage == 0:
            return ReplicatedTraining(self._model, spec, optimizer, self._ranks)
        return ZeroTraining(self._model, spec, optimizer, self._config, self._ranks)

    @property
    def _lm(self) -> CausalLM:
        return self._model.lm

    def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) log-probability of each action, after the temperature. No gradient."""
        return self.statistics(batch, ["logprobs"])["logprobs"]

    def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        """(sum of A,) each, after the temperature, in one pass. No gradient."""

        def score(rows: PackedRows) -> tuple[Tensor, ...]:
            return (
                action_statistics(
                    self._lm,
                    self._hidden(rows),
                    rows.targets,
                    names,
                    temperature=self._spec.temperature,
                    chunk=self._chunk,
                ),
            )

        (columns,) = self._score(batch, score)
        return {name: np.ascontiguousarray(columns[:, i]) for i, name in enumerate(names)}

    def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """The k most probable tokens at each action, after the temperature. No gradient.

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        if k > self._vocab_size:
            raise ConfigError(
                f"the {self._spec.role} has {self._vocab_size} tokens; {k} of them were asked for"
            )

        def score(rows: PackedRows) -> tuple[Tensor, ...]:
            return top_tokens(
                self._lm,
                self._hidden(rows),
                k,
                temperature=self._spec.temperature,
                chunk=self._chunk,
            )

        token_ids, logprobs = self._score(batch, score)
        return TopTokens(token_ids=token_ids.astype(np.int32), logprobs=logprobs)

    def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) value of the state before each action. No gradient."""
        if self._model.value_head is None:
            raise PluginError(f"the {self._spec.role} has no value head")
        (values,) = self._score(batch, lambda rows: (values_of(self._model, self._hidden(rows)),))
        return values

    def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one optimizer step over the rows of all ranks.

        The plan's normalizers are totals over all ranks, so that the ranks' losses add up to the step's. A gradient
        that is not finite on any rank is dropped on all, and counted by the first.
        """
        training = self._training
        if training is None:
            raise PluginError(f"the {self._spec.role} only scores; it has no objective to train on")
        trajectories = batch.trajectories
        seen = SeenLogprobs(trajectories, wanted=plan.return_logprobs)
        parts: list[Metrics] = []
        works = [
            partial(self._rollout_loss, batch, rows, plan, seen, parts)
            for rows in self._passes(trajectories, together=True)
        ]
        if batch.supervised is not None:
            works += [
                partial(self._supervised_loss, batch.supervised, rows, plan, parts)
                for rows in self._passes(batch.supervised, together=True)
            ]
        for number, work in enumerate(works, start=1):
            training.backward(training.forward(work), last=number == len(works))
        update = training.update()
        last: Metrics = {
            "train/tokens": Metric(int(trajectories.num_tokens.sum()), reduction="sum"),
            "train/micro_batches": Metric(len(parts), reduction="sum"),
            **self._update_metrics(update),
        }
        return StepOutcome(metrics=read_metrics([*parts, last]), logprobs=seen.logprobs)

    def _update_metrics(self, update: Metrics) -> Metrics:
        """What every rank knows alike: a sum over ranks must not count it more than once."""
        skipped = update.pop("skipped")
        named = {f"{self._spec.role}/{name}": metric for name, metric in update.items()}
        return named | ({"train/skipped_updates": skipped} if self._ranks.is_first else {})

    def _rollout_loss(
        self,
        batch: TrainBatch,
        rows: Rows,
        plan: StepPlan,
        seen: SeenLogprobs,
        parts: list[Metrics],
    ) -> Tensor:
        """Return this pass's part of the step's loss, leaving its metrics in ``parts``."""
        packed = packed_pass(batch.trajectories, rows, self._device)
        objective = self._spec.objective
        columns = ActionColumns(flat=columns_of(batch, rows, self._device), grid=packed.grid)
        if isinstance(objective, ValueObjective):
            values = values_of(self._model, self._hidden(packed))
            if not len(rows):
                return nothing(values)
            loss, metrics = value_objective(objective, values, columns, plan)
        else:
            assert self._terms is not None
            if not len(rows):
                return nothing(self._action_scores(packed).logprobs)
            scores = self._action_scores(packed, columns.flat.get(TEACHER_TOP_IDS))
            seen.add(rows, scores.logprobs)
            loss, metrics = policy_objective(self._terms, scores, columns, plan)
        parts.append(metrics)
        return loss

    def _supervised_loss(
        self, batch: TrajectoryColumns, rows: Rows, plan: StepPlan, parts: list[Metrics]
    ) -> Tensor:
        """The same for the terms on supervised rows."""
        assert self._terms is not None
        assert plan.supervised_normalizers is not None
        packed = packed_pass(batch, rows, self._device)
        scores = self._action_scores(packed)
        if not len(rows):
            return nothing(scores.logprobs)
        loss, metrics = supervised_objective(
            self._terms, scores, packed.grid, plan.supervised_normalizers
        )
        parts.append(metrics)
        return loss

    def _passes(self, batch: TrajectoryColumns, *, together: bool) -> list[Rows]:
        limit = self._spec.max_tokens_per_micro_batch
        return agreed_passes(batch.num_tokens, limit, self._ranks, together=together)

    def _score(
        self, batch: TrajectoryColumns, score: Callable[[PackedRows], tuple[Tensor, ...]]
    ) -> list[NDArray[np.float32]]:
        """Apply ``score`` to passes and put the results, (M, ...) each, where the actions are."""
        scoring = self._scoring
        assert scoring is not None, "setup comes first"
        passes = self._passes(batch, together=scoring.stage == 3)
        if not passes:  # nothing to do, but the caller wants columns of the right width
            passes = [np.zeros(0, dtype=np.int64)]
        done = []
        # Not inference mode: under stage 3 the weights that a pass collects are used by later backward passes.
        with torch.no_grad():
            for rows in passes:
                packed = packed_pass(batch, rows, self._device)
                done.append((rows, scoring.score(partial(score, packed))))
        total = int(batch.num_actions.sum())
        out = [np.empty((total, *part.shape[1:]), dtype=np.float32) for part in done[0][1]]
        for rows, results in done:
            if not len(rows):
                continue
            index = batch.action_index(rows)
            for column, result in zip(out, results, strict=True):
                # float32 holds token ids exactly, up to 2^24 of them.
                column[index] = result.float().cpu().numpy()
        return out

    def _hidden(self, rows: PackedRows) -> Tensor:
        """(M, D) hidden states of the tokens before the actions."""
        hidden = self._lm.hidden(rows.input_ids, rows.position_ids, rows.layout)
        return hidden.index_select(0, rows.predictors)

    def _action_scores(self, rows: PackedRows, others: Tensor | None = None) -> ActionScores:
        return action_scores(
            self._lm,
            self._hidden(rows),
            rows.targets,
            temperature=self._spec.temperature,
            chunk=self._chunk,
            others=others,
        )

    @property
    def _stage(self) -> int:
        assert self._scoring is not None, "setup comes first"
        return self._scoring.stage

    def module(self) -> torch.nn.Module | None:
        """The live ``CausalLM``; None where no rank has it whole, for a critic, and under an adapter."""
        if (
            self._stage == 3
            or self._model.adapter is not None
            or self._model.value_head is not None
        ):
            return None
        return self._lm

    def _served(self) -> Mapping[str, Tensor]:
        return served_weights(self._model, shared=self._stage == 3)

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the weights by Hugging Face names, on every rank; all ranks have to take every bucket."""
        return buckets_of(self._served())

    def checksum(self) -> str:
        """Digest of the weights as ``buckets`` gives them, equal on all ranks."""
        return checksum_of(self._served())

    def save(self, folder: Path) -> None:
        """Write this rank's part of the training state into a folder that all ranks see."""
        save_training(folder, self._training, self._model, self._ranks)

    def load(self, folder: Path) -> None:
        """Undo ``save``, also with another number of ranks or another stage than it was saved with."""
        load_training(folder, self._training, self._model, self._ranks)

    def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder; the first rank does, with weights from all.

        Raises:
            ConfigError: ``ema`` is asked for and none is kept.
        """
        if ema and self._spec.ema_decay is None:
            raise ConfigError(f"the {self._spec.role} keeps no moving average; set --actor.ema")
        with self._holding_average() if ema else nullcontext():
            export_role(self._model, self._served(), self._spec, folder, self._ranks)

    def _holding_average(self) -> AbstractContextManager[None]:
        if self._training is None:
            raise PluginError(f"the {self._spec.role} is not trained and has no moving average")
        return self._training.holding_average()

    def offload(self) -> None:
        """Move weights and training state to the host. Nothing to do on a CPU."""
        if self._device.type == "cuda" and self._offloading is None:
            assert self._scoring is not None, "setup comes first"
            self._offloading = Offloading(self._scoring, self._model, self._device)
            self._offloading.offload()

    def reload(self) -> None:
        """Undo ``offload``."""
        if self._offloading is not None:
            self._offloading.reload()
            self._offloading = None

    def close(self) -> None:
        """Drop model and training state. The process group stays: DeepSpeed keeps one for good."""
        if self._scoring is not None:
            self._scoring.close()
        self._training = self._scoring = None
