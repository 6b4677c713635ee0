"""The FSDP training backend: one object per rank and role, built on torch's ``fully_shard``.

All ranks of the role make the same calls in the same order, each with its own rows. A call returns the results of this
rank's rows. Its metrics are this rank's share; the runtime merges the shares of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlhf_core.contracts import (
    RoleSpec,
    StepOutcome,
    StepPlan,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.objective import BuiltObjective
from rlhf_core.plugins import Plugins
from rlhf_torch.cut.part_files import load_parts, save_parts
from rlhf_torch.heads.action_head import default_chunk
from rlhf_torch.models.buckets import buckets_of
from rlhf_torch.models.device import choose_compute_dtype, choose_device
from rlhf_torch.models.modeling import DTYPES
from rlhf_torch.models.role_model import RoleModel, RoleOptions, build_role_model
from rlhf_torch.ranks.attempts import compute_gradient
from rlhf_torch.ranks.export import export_role
from rlhf_torch.ranks.images import PassImages
from rlhf_torch.ranks.own_rows import OwnRows, pack_pass
from rlhf_torch.ranks.pass_losses import PassLosses
from rlhf_torch.ranks.passes import Rows, agreed_passes, update_tokens
from rlhf_torch.ranks.ranks import Ranks, join, own_device
from rlhf_torch.rows.batch_columns import Pass, placed
from rlhf_torch.rows.token_limit import TokenLimit
from rlhf_torch.scoring.leaving_role import LeavingRole
from rlhf_torch.scoring.scoring_backend import OpenRole, Score
from rlhf_torch.training.trained_parts import trained_parts
from rlhf_torch.training.undo import Undo
from rlhf_torch.training.updater import update_metrics

from .config import FsdpConfig
from .sharding import ShardedRole, served, shard, whole
from .training import FsdpTraining


class FsdpBackend(LeavingRole):
    """One role's model on this rank, as far as this rank has it; of a trained role also its part of the state."""

    def __init__(self, config: FsdpConfig) -> None:
        self._config = config
        self._ranks: Ranks
        self._images: PassImages
        self._sharded: ShardedRole | None = None
        self._training: FsdpTraining | None = None
        self._undo: Undo | None = None
        self._objective: BuiltObjective | None = None
        self._losses: PassLosses | None = None
        self.updates_begun = 0  # counted where an update may begin to change weights

    def setup(self, spec: RoleSpec, plugins: Plugins) -> None:
        """Join the process group of the ranks, load the model, share it among the ranks and create the optimizer.

        Raises:
            ConfigError: the model cannot be loaded, the trained role has no optimizer, or the environment does not
                name the other ranks.
            PluginError: the backend cannot use the architecture, the adapter or the optimizer.
        """
        self._spec, config = spec, self._config
        self._dtype = DTYPES[spec.dtype]
        self._leaves_from(own_device(choose_device(config.device)))
        self._ranks = join(self._device)
        # In host memory: torch moves one layer after the other to the device, which may lack memory for all.
        options = RoleOptions(
            device="cpu",
            gradient_checkpointing=config.gradient_checkpointing,
            deterministic=config.deterministic,
        )
        model = build_role_model(spec, options, plugins)
        size = sum(parameter.numel() for parameter in model.lm.parameters())
        model.lm.compute_dtype = choose_compute_dtype(
            config.compute_dtype, self._dtype, size, self._device
        )
        chunk = config.logits_chunk or default_chunk(self._device, model.lm.vocab_size)
        self._images = PassImages(model.lm, self._ranks)
        self._open = OpenRole.of(model, spec, chunk)
        if spec.objective is None:
            self._sharded = shard(model, spec, config, self._ranks)
        else:
            self._objective, optimizer = trained_parts(spec, plugins)
            self._open.reader.serve(self._objective)
            self._losses = PassLosses(
                self._objective, self._open.reader, self._lay_out, reports=True
            )
            self._training = FsdpTraining(model, spec, optimizer, config, self._ranks)
            self._sharded = self._training.sharded
            self._undo = Undo(spec.role, model, self._training, self._ranks.largest)
        if spec.leaving != "nothing":
            if (training := self._training) is not None:
                self._prepare_state(training.masters, training.optimizer)
            if spec.leaving == "all":
                self._weights_out.prepare(self._weight_tensors(model))

    def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one update with the gradient of the rows of all ranks.

        The plan's normalizers are totals over all ranks, so that the ranks' losses add up to the loss of the update.
        If a gradient is not finite on any rank, all ranks skip the update and the first rank counts it as skipped.

        An objective that raises on one rank ends the update on all, before it changes anything.

        Raises:
            PluginError: the role has no objective.
        """
        training, losses = self._training, self._losses
        if training is None or losses is None:
            raise self._only_scores()
        self._require_state()
        with self._ranks.together():
            self._role.reader.check(batch)
        found = losses.of_update(batch, plan, self._passes)
        seed = self._ranks.dropout_seed(self._spec.seed + training.updates)
        tokens = update_tokens(self._model, batch, self._ranks)

        def gradient() -> None:
            with self._model.updating(seed, tokens):
                compute_gradient(training, found.works, self._ranks, recovers=False)

        # Ranks would wait for one that begins a pass again, so a pass that fails ends the run; a note says what to set.
        limit = TokenLimit(self._spec.max_tokens_per_micro_batch, self._device)
        limit.within(gradient, total=0, longest=0)
        with self._ranks.together():
            found.require_whole()
        if self._state_arrives:  # until here nothing has needed it
            self._wait_for_state()
        if plan.undo_bytes and self._undo is not None:
            self._undo.keep(self.updates_begun, plan.undo_bytes)
        self.updates_begun += 1
        update = training.update(plan.lr_factor)
        if plan.syncs_reference:
            training.sync_reference()
        metrics = update_metrics(
            self._spec.role,
            batch,
            found.parts,
            update,
            self._model.routing,
            sum_=self._ranks.sum_,
            is_first=self._ranks.is_first,
        )
        return found.seen.outcome(metrics)

    def undo(self, updates_begun: int) -> bool:
        """Go back to the state before the update that was kept when so many had begun; each rank its part."""
        self._wait_for_state()
        return self._undo is not None and self._undo.restore(updates_begun)

    def _passes(self, batch: TrajectoryColumns, rows_per_unit: int = 1) -> list[Rows]:
        return agreed_passes(
            batch,
            self._spec.max_tokens_per_micro_batch,
            self._ranks,
            together=True,
            share_prompts=self._shares(batch.num_tokens),
            rows_per_unit=rows_per_unit,
        )

    def _lay_out(self, batch: TrajectoryColumns, rows: Rows) -> OwnRows:
        return OwnRows(
            pack_pass(
                batch,
                rows,
                self._device,
                share_prompts=self._shares(batch.num_tokens[rows]),
                at_actions=self._spec.head == "score",
                images=self._images,
            )
        )

    def _shares(self, lengths: NDArray[np.int64]) -> bool:
        return self._config.share_prompts and self._model.lets_share(lengths)

    def _score(self, batch: TrajectoryColumns, score: Score) -> list[NDArray[np.float32]]:
        """Apply ``score`` to each micro-batch; return one column (sum of A, ...) per result, for this rank's rows."""
        sharded = self._sharded
        assert sharded is not None, "setup comes first"
        done = []
        # Inference mode would mark the weights that ranks collect here, and later backward passes use them too.
        with torch.no_grad():
            for rows in self._passes(batch):
                packed = self._lay_out(batch, rows).packed
                done.append(Pass(rows, sharded(partial(score, packed))))
        sharded.reshard()
        return placed(batch, done)

    def module(self) -> torch.nn.Module | None:
        """Return None: no rank has the whole model."""
        return None

    def _served(self) -> Iterator[tuple[str, Tensor]]:
        return served(self._model, self._dtype)

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield buckets of the weights by Hugging Face names, or of an adapter's factors, on every rank. All ranks must
        consume every bucket; a rank has one bucket at a time."""
        return buckets_of(self._served())

    def checksum(self) -> str:
        """Return the digest of the weights that ``buckets`` yields; each rank returns it."""
        return self._model.checksum(self._served())

    def save(self, folder: Path) -> None:
        """Write this rank's part of the training state into a folder that all ranks see.

        Raises:
            CheckpointError: the optimizer's state cannot be written.
            StorageError: a rank could not write its part; all of them raise it.
        """
        self._wait_for_state()
        with self._ranks.writing_together():
            folder.mkdir(parents=True, exist_ok=True)
            if self._training is not None:
                save_parts(folder, self._training, self._ranks)

    def load(self, folder: Path) -> None:
        """Restore the state that ``save`` wrote on any number of ranks, or DeepSpeed's backend at stages 1 to 3.

        Raises:
            CheckpointError: a file is missing or damaged, or belongs to another model or optimizer.
        """
        self._wait_for_state()
        if self._training is not None:
            load_parts(folder, self._training)
        self._ranks.wait()

    def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder, or under an adapter a PEFT folder; a reward model as a sequence classifier
        of one label, with its adapter merged.

        The first rank writes it, with weights from all ranks.

        Raises:
            ConfigError: ``ema`` is true and the role keeps no moving average.
        """
        self._wait_for_state()
        if ema:
            self._require_average()
        model, training = self._model, self._training
        with training.holding_average() if ema and training is not None else nullcontext():
            export_role(
                model,
                self._served() if model.adapter is None else None,
                self._spec,
                folder,
                self._ranks,
                lambda parameters: whole(model, parameters, self._dtype),
            )

    def _holding_reference(self) -> AbstractContextManager[None] | None:
        # A reference of several ranks may be in no vector of this one.
        if self._training is None or self._spec.reference_sync is None:
            return None
        self._wait_for_state()
        return self._training.holding_reference()

    def _state_tensors(self) -> Iterable[Tensor] | None:
        return None if self._training is None else self._training.state()

    def _weight_tensors(self, model: RoleModel) -> Iterable[Tensor]:
        """Yield this rank's part of the parameters, which are the float32 weights too, and the buffers."""
        for parameter in model.parameters():
            yield parameter.to_local() if isinstance(parameter, DTensor) else parameter
        yield from model.buffers()

    def close(self) -> None:
        """Drop model and training state. The process group stays, for other roles of this process."""
        self._training = self._undo = self._sharded = self._open = None
        self._objective = self._losses = None
        self._drop_host_memory()
