"""The torch training backend: one process, one device, packed micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import (
    Metrics,
    RoleSpec,
    StepOutcome,
    StepPlan,
    TrainBackend,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.objective import (
    ActionColumns,
    BuiltObjective,
    BuiltPolicyObjective,
    BuiltScoreObjective,
    BuiltValueObjective,
)
from rlhf_core.plugins import Plugins
from rlhf_torch.experts.routing import counted_tokens
from rlhf_torch.heads.action_head import default_chunk
from rlhf_torch.models.buckets import buckets_of
from rlhf_torch.models.device import choose_device
from rlhf_torch.models.export import export_model, holding
from rlhf_torch.models.role_model import RoleOptions, build_role_model
from rlhf_torch.models.shared_base import SharedBase
from rlhf_torch.models.vision_lm import VisionLM
from rlhf_torch.rows.batch_columns import Pass, SeenScores, placed
from rlhf_torch.rows.packed_rows import PackedRows, pack_rows
from rlhf_torch.rows.prompt_sharing import sharing_micro_batches
from rlhf_torch.rows.token_limit import TokenLimit
from rlhf_torch.scoring.leaving_role import LeavingRole
from rlhf_torch.scoring.scoring_backend import OpenRole, Score
from rlhf_torch.training.state_files import load_state, save_state
from rlhf_torch.training.trained_parts import trained_parts
from rlhf_torch.training.undo import Undo
from rlhf_torch.training.updater import Updater, update_metrics

from .config import TorchBackendConfig

ResultT = TypeVar("ResultT")


class TorchBackend(LeavingRole):
    """One role's model, and its optimizer if it is trained."""

    def __init__(self, config: TorchBackendConfig) -> None:
        self._config = config
        self._leaves_from(choose_device(config.device))
        self._updater: Updater | None = None
        self._undo: Undo | None = None
        self._objective: BuiltObjective | None = None
        self.updates_begun = 0
        """Number of optimizer updates of this process, from the moment on at which they may change weights."""

    def setup(self, spec: RoleSpec, plugins: Plugins) -> None:
        """Load the model, make the optimizer.

        Raises:
            ConfigError: a model that cannot be loaded, or a trained role without an optimizer.
            PluginError: an architecture, adapter or optimizer that cannot be used.
        """
        self._set_up(spec, plugins, None)

    def setup_beside(
        self, spec: RoleSpec, plugins: Plugins, others: Sequence[TrainBackend]
    ) -> None:
        """As ``setup``, with the weights that one of ``others`` holds, if neither role trains them and they are the
        same: one model path, dtype and way of loading."""
        bases = [other.base for other in others if isinstance(other, TorchBackend)]
        self._set_up(spec, plugins, [base for base in bases if base is not None])

    def _set_up(self, spec: RoleSpec, plugins: Plugins, bases: list[SharedBase] | None) -> None:
        self._spec = spec
        self._limit = TokenLimit(spec.max_tokens_per_micro_batch, self._device)
        config = self._config
        options = RoleOptions(
            device=config.device,
            compute_dtype=config.compute_dtype,
            gradient_checkpointing=config.gradient_checkpointing,
            compile=config.compile,
            deterministic=config.deterministic,
        )
        model = build_role_model(spec, options, plugins, bases)
        chunk = config.logits_chunk or default_chunk(self._device, model.lm.vocab_size)
        self._open = OpenRole.of(model, spec, chunk)
        if spec.objective is not None:
            self._objective, optimizer = trained_parts(spec, plugins)
            self._open.reader.serve(self._objective)
            self._updater = updater = Updater(model.named_trainable(), spec, optimizer)
            self._undo = Undo(spec.role, model, updater)
            if spec.leaving != "nothing":
                self._prepare_state(updater.masters.values(), updater.optimizer)

    @property
    def base(self) -> SharedBase | None:
        """The weights that roles set up after this one may compute with; None: this role trains them, or shares
        nothing."""
        return self._model.base

    def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one optimizer step; a gradient that is not finite is dropped and counted."""
        if self._updater is None:
            raise self._only_scores()
        self._require_state()
        trajectories = batch.trajectories
        self._role.reader.check(batch)
        objective = self._objective
        assert objective is not None
        parts, seen = self._within_memory(
            lambda: self._gradients(batch, plan, objective.rows_per_unit),
            [trajectories, batch.supervised],
            objective.rows_per_unit,
        )
        if self._state_arrives:  # until here nothing has needed it
            self._wait_for_state()
        if plan.undo_bytes and self._undo is not None:
            self._undo.keep(self.updates_begun, plan.undo_bytes)
        self.updates_begun += 1
        update = self._updater.update(plan.lr_factor)
        if plan.syncs_reference:
            self._updater.sync_reference()
        metrics = update_metrics(self._spec.role, batch, parts, update, self._model.routing)
        return seen.outcome(metrics)

    def undo(self, updates_begun: int) -> bool:
        """Go back to the state before the update that was kept when so many had begun."""
        self._wait_for_state()
        return self._undo is not None and self._undo.restore(updates_begun)

    def _gradients(
        self, batch: TrainBatch, plan: StepPlan, rows_per_unit: int
    ) -> tuple[list[Metrics], SeenScores]:
        """Compute the gradients of an update, and return the metrics of each micro-batch and the scores seen."""
        updater, trajectories = self._updater, batch.trajectories
        assert updater is not None
        updater.drop_gradient()  # of an attempt that failed
        seen = SeenScores(trajectories, plan)
        parts: list[Metrics] = []
        seed = self._spec.seed + updater.updates
        tokens = 0 if self._model.routing is None else counted_tokens(batch)
        with self._model.updating(seed, tokens):
            for rows in self._micro_batches(trajectories, rows_per_unit):
                packed = self._packed(trajectories, rows)
                columns = ActionColumns.of(batch, rows, packed.grid)
                loss, metrics = self._loss(packed, columns, plan, seen, rows)
                self._backward(loss)
                parts.append(metrics)
            parts += self._imitate(batch.supervised, plan)
        return parts, seen

    def _imitate(self, rows: TrajectoryColumns | None, plan: StepPlan) -> list[Metrics]:
        """Add the gradients of the terms on supervised rows."""
        if rows is None:
            return []
        objective, totals = self._objective, plan.supervised_normalizers
        assert isinstance(objective, BuiltPolicyObjective)
        assert totals is not None
        parts = []
        for part in self._micro_batches(rows):
            packed = self._packed(rows, part)
            scores = self._role.reader.action_scores(packed)
            loss, metrics = objective.supervised(scores, packed.grid, totals)
            self._backward(loss)
            parts.append(metrics)
        return parts

    def _backward(self, loss: Tensor) -> None:
        assert self._updater is not None
        self._role.reader.with_balance(loss).backward()
        self._updater.collect()

    def _micro_batches(
        self, batch: TrajectoryColumns, rows_per_unit: int = 1
    ) -> list[NDArray[np.int64]]:
        return sharing_micro_batches(
            batch,
            self._limit.tokens,
            share_prompts=self._shares(batch.num_tokens),
            rows_per_unit=rows_per_unit,
        )

    def _packed(self, batch: TrajectoryColumns, rows: NDArray[np.int64]) -> PackedRows:
        at_actions = self._spec.head == "score"
        lm = self._lm
        return pack_rows(
            batch,
            rows,
            self._device,
            share_prompts=self._shares(batch.num_tokens[rows]),
            at_actions=at_actions,
            reader=lm.reader if isinstance(lm, VisionLM) else None,
        )

    def _shares(self, lengths: NDArray[np.int64]) -> bool:
        return self._config.share_prompts and self._model.lets_share(lengths)

    def _score(self, batch: TrajectoryColumns, score: Score) -> list[NDArray[np.float32]]:
        """Apply ``score`` to micro-batches and put the results, (M, ...) each, where the actions are."""
        with torch.inference_mode():
            passes = self._within_memory(
                lambda: [
                    Pass(rows, score(self._packed(batch, rows)))
                    for rows in self._micro_batches(batch)
                ],
                [batch],
            )
        return placed(batch, passes)

    def _within_memory(
        self,
        compute: Callable[[], ResultT],
        batches: Sequence[TrajectoryColumns | None],
        rows_per_unit: int = 1,
    ) -> ResultT:
        """Return what ``compute`` returns, in smaller micro-batches where memory does not suffice."""
        lengths = [batch.num_tokens for batch in batches if batch is not None and len(batch)]
        units = [length.reshape(-1, rows_per_unit).sum(axis=1) for length in lengths[:1]]
        longest = max((int(length.max()) for length in [*units, *lengths[1:]]), default=0)
        total = max((int(length.sum()) for length in lengths), default=0)
        return self._limit.within(compute, total, longest)

    def _loss(
        self,
        packed: PackedRows,
        columns: ActionColumns,
        plan: StepPlan,
        seen: SeenScores,
        rows: NDArray[np.int64],
    ) -> tuple[Tensor, Metrics]:
        objective = self._objective
        assert objective is not None
        if isinstance(objective, BuiltValueObjective | BuiltScoreObjective):
            values = self._role.reader.values(packed)
            seen.add_values(rows, values)
            return objective.rollouts(values, columns, plan)
        scores = self._role.reader.action_scores(packed, columns.teacher_top_ids)
        seen.add(rows, scores)
        if isinstance(objective, BuiltPolicyObjective):
            return objective.rollouts(scores, columns, plan, seen.recorder(rows))
        return objective.rollouts(scores, columns, plan)

    def module(self) -> torch.nn.Module | None:
        """The live ``CausalLM``, adapter included; None for a critic or a reward model."""
        return None if self._model.value_head is not None else self._lm

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the weights that engines get (``RoleModel.served``), at most 512 MiB at a time unless one tensor is
        larger."""
        return buckets_of(self._model.served())

    def checksum(self) -> str:
        """Digest of the weights as ``buckets`` gives them, and of a base in 4 bits."""
        return self._model.checksum()

    def save(self, folder: Path) -> None:
        self._wait_for_state()
        save_state(folder, self._model, self._updater)
        self._limit.save(folder)

    def load(self, folder: Path) -> None:
        self._wait_for_state()
        load_state(folder, self._model, self._updater)
        self._limit.load(folder)

    def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder.

        Raises:
            ConfigError: ``ema`` is asked for and none is kept.
        """
        self._wait_for_state()
        if ema:
            self._require_average()
        averages = self._updater.ema if ema and self._updater is not None else {}
        weights = dict(self._model.named_weights())
        with holding(weights, averages) if ema else nullcontext():
            export_model(
                self._model,
                self._spec.tokenizer_path or self._spec.model_path,
                folder,
                trust_remote_code=self._spec.trust_remote_code,
            )

    def _holding_reference(self) -> AbstractContextManager[None] | None:
        if self._updater is None or not self._updater.reference:
            return None
        self._wait_for_state()
        return self._updater.holding_reference()

    def _state_tensors(self) -> Iterable[Tensor] | None:
        return None if self._updater is None else self._updater.state()

    def close(self) -> None:
        """Drop model and optimizer."""
        self._updater = self._undo = self._open = self._objective = None
        self._drop_host_memory()
