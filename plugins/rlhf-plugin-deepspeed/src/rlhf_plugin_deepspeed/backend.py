"""The DeepSpeed training backend: one object per rank and role.

All ranks of the role make the same calls in the same order, each with its own rows. A call returns the results of this
rank's rows. Its metrics are this rank's share; the runtime merges the shares of all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import RoleSpec, StepOutcome, StepPlan, TrainBatch, TrajectoryColumns
from rlhf_core.objective import BuiltObjective
from rlhf_core.plugins import Plugins
from rlhf_torch.heads.action_head import default_chunk
from rlhf_torch.models.buckets import buckets_of
from rlhf_torch.models.device import choose_device
from rlhf_torch.ranks.attempts import compute_gradient, sizes
from rlhf_torch.ranks.export import export_role
from rlhf_torch.ranks.images import PassImages
from rlhf_torch.ranks.pass_losses import PassLosses, UpdateLosses
from rlhf_torch.ranks.passes import Rows, agreed_passes, update_tokens
from rlhf_torch.ranks.ranks import Ranks, join, own_device
from rlhf_torch.rows.batch_columns import Pass, placed
from rlhf_torch.rows.token_limit import TokenLimit
from rlhf_torch.scoring.scoring_backend import OpenRole, Score, ScoringBackend
from rlhf_torch.training.trained_parts import trained_parts
from rlhf_torch.training.undo import Undo
from rlhf_torch.training.updater import update_metrics

from .config import DeepSpeedConfig
from .files.loading import load_role
from .files.offloading import Offloading
from .files.training import load_training, save_training
from .files.weights import served_weights, whole
from .parallel.group_batch import group_batch, group_rows
from .parallel.images import refuse_cut_images
from .parallel.rank_group import RankGroup, join_group
from .parallel.sequence_attention import check_heads, check_layers
from .parallel.sequence_rows import GroupRows, lay_out
from .parallel.tensor_shards import WholeShards
from .scoring import SharedScoring, WholeScoring
from .zero.replicated_training import ReplicatedTraining
from .zero.zero_training import ZeroTraining

Training = ZeroTraining | ReplicatedTraining

log = logging.getLogger(__name__)


class DeepSpeedBackend(ScoringBackend):
    """One role's model on this rank; of a trained role also this rank's part of the training state."""

    def __init__(self, config: DeepSpeedConfig) -> None:
        self._config = config
        self._ranks: Ranks
        self._group: RankGroup
        """Rank group whose ranks compute the same rows."""
        self._slices: RankGroup
        """Rank group whose ranks each compute a slice of the tokens of these rows."""
        self._images: PassImages
        self._training: Training | None = None
        self._undo: Undo | None = None
        self._scoring: Training | WholeScoring | SharedScoring | None = None
        self._objective: BuiltObjective | None = None
        self._losses: PassLosses | None = None
        self._limit: TokenLimit
        self._offloading: Offloading | None = None
        self.updates_begun = 0  # counted where an update may begin to change weights

    def setup(self, spec: RoleSpec, plugins: Plugins) -> None:
        """Join the process group of the ranks, load the model and create the optimizer.

        Raises:
            ConfigError: the model cannot be loaded, the trained role has no optimizer, or the environment does not
                name the other ranks.
            PluginError: the backend cannot use the architecture, the adapter or the optimizer.
        """
        self._spec = spec
        if spec.vision is not None:
            refuse_cut_images(self._config)
        self._device = own_device(choose_device(self._config.device))
        self._ranks = join(self._device)
        self._limit = TokenLimit(spec.max_tokens_per_micro_batch, self._device)
        model = load_role(spec, self._config, plugins, self._device)
        chunk = self._config.logits_chunk or default_chunk(self._device, model.lm.vocab_size)
        self._images = PassImages(model.lm, self._ranks)
        self._open = OpenRole.of(model, spec, chunk)
        self._join_groups()
        if spec.objective is not None:
            self._training = self._scoring = self._start_training(plugins)
            self._undo = Undo(spec.role, model, self._training, self._ranks.largest)
        elif self._config.zero_stage == 3:
            self._scoring = SharedScoring(model, spec, self._config, self._ranks)
        else:
            self._scoring = WholeScoring()
        if spec.leaving != "nothing":
            self._offloading = Offloading(self._scoring, model, self._device)
            self._offloading.prepare(weights=spec.leaving == "all", state=True)

    def _join_groups(self) -> None:
        """Join the rank groups that ``sequence_parallel`` and ``tensor_parallel`` ask for."""
        config, ranks = self._config, self._ranks
        check_layers(self._lm, config.sequence_parallel)
        check_heads(self._lm.num_heads, config.sequence_parallel)
        self._slices = join_group(ranks, config.sequence_parallel, "sequence_parallel")
        if self._model.routing is not None and self._slices.size > 1:
            self._model.routing.whole = self._slices.summed
        if config.share_prompts and self._slices.size > 1 and ranks.is_first:
            log.info(
                "backend.deepspeed.share_prompts: the %s computes every sequence whole, as its ranks share sequences "
                "(sequence_parallel)",
                self._spec.role,
            )
        # A role without an objective has whole matrices on every rank, so its ranks may compute different rows.
        shares = self._spec.objective is not None and config.tensor_parallel > 1
        self._group = (
            join_group(ranks, config.tensor_parallel, "tensor_parallel") if shares else self._slices
        )

    def _start_training(self, plugins: Plugins) -> Training:
        spec = self._spec
        self._objective, optimizer = trained_parts(spec, plugins)
        reader = self._role.reader
        reader.serve(self._objective)
        # On the first rank of the rank group only: all its ranks have the same metrics.
        self._losses = PassLosses(
            self._objective, reader, self._lay_out, reports=self._group.is_first
        )
        if self._config.zero_stage == 0:
            return ReplicatedTraining(self._model, spec, optimizer, self._ranks)
        return ZeroTraining(self._model, spec, optimizer, self._config, self._ranks)

    def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one update with the gradient of the rows of all ranks.

        The plan's normalizers are totals over all ranks, so that the ranks' losses add up to the loss of the update.
        If a gradient is not finite on any rank, all ranks skip the update and the first rank counts it as skipped.

        An objective that raises on one rank ends the update on all, before it changes anything.

        Raises:
            PluginError: the role has no objective.
        """
        training, objective = self._training, self._objective
        if training is None or objective is None:
            raise self._only_scores()
        self._require_state()
        together = group_batch(batch, self._group)
        whole = together.batch
        with self._ranks.together():
            self._role.reader.check(whole)
        recovers = training.recovers and self._slices.size == 1
        unit = objective.rows_per_unit
        size = (
            sizes([whole.trajectories, whole.supervised], unit, self._ranks) if recovers else (0, 0)
        )
        tokens = update_tokens(self._model, batch, self._ranks)
        found = self._limit.within(
            lambda: self._gradient(training, whole, plan, tokens, recovers=recovers), *size
        )
        with self._ranks.together():
            found.require_whole()
        self._wait_for_state()  # until here nothing has needed it
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
        return found.seen.outcome(metrics, together.own)

    def undo(self, updates_begun: int) -> bool:
        """Go back to the state before the update that was kept when so many had begun; a collective call.

        Each rank brings back its part, and the ranks make the model's weights of the float32 weights.
        """
        self._wait_for_state()
        if self._training is None or self._undo is None or not self._undo.restore(updates_begun):
            return False
        self._training.publish()
        return True

    def _gradient(
        self, training: Training, batch: TrainBatch, plan: StepPlan, tokens: int, *, recovers: bool
    ) -> UpdateLosses:
        """Compute the gradient of an update, and return its losses with what they leave behind."""
        assert self._losses is not None
        found = self._losses.of_update(batch, plan, partial(self._passes, together=True))
        seed = self._ranks.dropout_seed(self._spec.seed + training.updates)
        with self._model.updating(seed, tokens):
            compute_gradient(training, found.works, self._ranks, recovers=recovers)
        return found

    def _passes(
        self, batch: TrajectoryColumns, rows_per_unit: int = 1, *, together: bool
    ) -> list[Rows]:
        # The option limits the tokens of one rank; a sequence-parallel group has that room on each of its ranks.
        limit = self._limit.tokens * self._slices.size
        return agreed_passes(
            batch,
            limit,
            self._ranks,
            together=together,
            share_prompts=self._shares(batch.num_tokens),
            rows_per_unit=rows_per_unit,
        )

    def _lay_out(self, batch: TrajectoryColumns, rows: Rows) -> GroupRows:
        return lay_out(
            batch,
            rows,
            self._slices,
            self._device,
            share_prompts=self._shares(batch.num_tokens[rows]),
            at_actions=self._spec.head == "score",
            images=self._images,
        )

    def _shares(self, lengths: NDArray[np.int64]) -> bool:
        may = self._config.share_prompts and self._slices.size == 1
        return may and self._model.lets_share(lengths)

    def _score(self, batch: TrajectoryColumns, score: Score) -> list[NDArray[np.float32]]:
        """Apply ``score`` to each micro-batch; return one column (sum of A, ...) per result, for this rank's rows."""
        scoring = self._scoring
        assert scoring is not None, "setup comes first"
        together = group_rows(batch, self._group)
        trajectories = together.batch.trajectories
        passes = self._passes(trajectories, together=scoring.stage == 3)
        if (
            not passes
        ):  # A stand-in pass gives the empty columns the number of axes that the caller expects.
            passes = [np.zeros(0, dtype=np.int64)]
        done = []
        # Inference mode would mark the weights that stage 3 collects here, and later backward passes use them too.
        with torch.no_grad():
            for rows in passes:
                shared = self._lay_out(trajectories, rows)
                results = scoring.score(partial(score, shared.packed))
                done.append(Pass(rows, tuple(shared.whole(result) for result in results)))
        return [column[together.own] for column in placed(trajectories, done)]

    @property
    def _stage(self) -> int:
        assert self._scoring is not None, "setup comes first"
        return self._scoring.stage

    def _holding_reference(self) -> AbstractContextManager[None] | None:
        # A reference of several ranks may be in no vector of this one.
        if self._training is None or self._spec.reference_sync is None:
            return None
        self._wait_for_state()
        return self._training.holding_reference()

    def module(self) -> torch.nn.Module | None:
        """Return the live ``CausalLM``, adapter included; None for a critic or a reward model, or if no rank has the
        whole model."""
        if self._stage == 3 or self._is_sharded or self._model.value_head is not None:
            return None
        return self._lm

    @property
    def _is_sharded(self) -> bool:
        return self._training is not None and self._config.tensor_parallel > 1

    def _served(self) -> Mapping[str, Tensor]:
        if self._is_sharded:
            return WholeShards(self._lm.model)
        return served_weights(self._model, shared=self._stage == 3)

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield buckets of the weights by Hugging Face names, or of an adapter's factors, on every rank. All ranks must
        consume every bucket."""
        return buckets_of(self._served().items())

    def checksum(self) -> str:
        """Return the digest of the weights that ``buckets`` yields, and of a base in 4 bits; each rank returns it."""
        return self._model.checksum(self._served().items())

    def save(self, folder: Path) -> None:
        """Write this rank's part of the training state into a folder that all ranks see.

        Raises:
            CheckpointError: the optimizer's state cannot be written.
            StorageError: a rank could not write its part; all of them raise it.
        """
        self._wait_for_state()
        with self._ranks.writing_together():
            save_training(folder, self._training, self._model, self._ranks)
            if self._ranks.is_first:
                self._limit.save(folder)

    def load(self, folder: Path) -> None:
        """Restore the state that ``save`` wrote; stages 1 to 3 also read another number of ranks or stage.

        Raises:
            CheckpointError: a file is missing or damaged, or belongs to another model or optimizer, or stage 0 meets
                the files of stages 1 to 3.
        """
        self._wait_for_state()
        load_training(folder, self._training, self._model, self._ranks)
        self._limit.load(folder)

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
        training = self._training
        with training.holding_average() if ema and training is not None else nullcontext():
            weights = self._served().items() if self._model.adapter is None else None
            shared = any(hasattr(parameter, "ds_id") for parameter in self._model.parameters())
            export_role(
                self._model, weights, self._spec, folder, self._ranks, whole if shared else None
            )

    def _wait_for_state(self) -> None:
        self._require_state()
        if self._offloading is not None:
            self._offloading.finish_reload()

    def offload(self, *, weights: bool = True, state: bool = True) -> None:
        """Move the state of training and, with ``weights``, the model to host memory."""
        assert self._scoring is not None, "setup comes first"
        assert self._open is not None
        if self._offloading is None:
            self._offloading = Offloading(self._scoring, self._open.model, self._device)
        self._offloading.offload(weights=weights, state=state)
        self._state_is_out = self._state_is_out or state
        self._weights_are_out = self._weights_are_out or weights

    def reload(self, *, state: bool = True) -> None:
        """Move back what ``offload`` moved, or weights alone. The state comes beside what is computed next."""
        if self._offloading is not None:
            self._offloading.reload(state=state)
        self._weights_are_out = False
        self._state_is_out = self._state_is_out and not state

    def close(self) -> None:
        """Drop model and training state. The process group stays, because DeepSpeed keeps using it."""
        if self._scoring is not None:
            self._scoring.close()
        if self._offloading is not None:
            self._offloading.close()
        self._training = self._undo = self._scoring = self._offloading = self._open = None
        self._objective = self._losses = None
