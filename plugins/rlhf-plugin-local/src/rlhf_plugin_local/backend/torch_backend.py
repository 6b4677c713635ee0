"""The torch training backend: one process, one device, packed micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
    StepPlan,
    TrainBatch,
    TrajectoryColumns,
    ValueObjective,
)
from rlhf_core.plugins import Plugins

from ..checksum import checksum_of
from ..config import TorchBackendConfig
from ..modeling import CausalLM
from .action_head import action_logprobs, default_chunk
from .device import choose_device
from .export import export_model, holding
from .metric_reading import read_metrics
from .microbatch import micro_batches
from .objectives import ActionColumns, PolicyTerms, policy_objective, value_objective
from .packed_rows import PackedRows, pack_rows
from .role_model import RoleModel, build_role_model
from .state_files import load_state, save_state
from .updater import Updater

BUCKET_BYTES = 512 * 2**20


class TorchBackend:
    """One role's model, and its optimizer if it is trained."""

    def __init__(self, config: TorchBackendConfig) -> None:
        self._config = config
        self._device = choose_device(config.device)
        self._built: RoleModel | None = None
        self._updater: Updater | None = None
        self._terms: PolicyTerms | None = None

    def setup(self, spec: RoleSpec, plugins: Plugins) -> None:
        """Load the model, make the optimizer.

        Raises:
            ConfigError: a model that cannot be loaded, or a trained role without an optimizer.
            PluginError: an architecture, adapter or optimizer that cannot be used.
        """
        self._spec = spec
        self._built = build_role_model(spec, self._config, plugins)
        self._chunk = self._config.logits_chunk or default_chunk(self._device, self._lm.vocab_size)
        if spec.objective is None:
            return
        if isinstance(spec.objective, PolicyObjective):
            self._terms = PolicyTerms.build(spec.objective, plugins)
        elif spec.head != "value":
            raise ConfigError(f"the {spec.role} has a value objective but no value head")
        if spec.optimizer is None:
            raise ConfigError(f"the {spec.role} is trained but has no optimizer")
        optimizer = plugins.build(spec.optimizer)
        self._updater = Updater(self._model.named_trainable(), spec, optimizer)

    @property
    def _model(self) -> RoleModel:
        assert self._built is not None, "setup comes first"
        return self._built

    @property
    def _lm(self) -> CausalLM:
        return self._model.lm

    def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) log-probability of each action, after the temperature. No gradient."""
        return self._score(batch, lambda rows: self._action_logprobs(rows)[0])

    def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) value of the state before each action. No gradient."""
        if self._model.value_head is None:
            raise PluginError(f"the {self._spec.role} has no value head")
        return self._score(batch, lambda rows: self._model.values(self._hidden(rows)))

    def train_step(self, batch: TrainBatch, plan: StepPlan) -> Metrics:
        """Do one optimizer step; a gradient that is not finite is dropped and counted."""
        if self._updater is None:
            raise PluginError(f"the {self._spec.role} only scores; it has no objective to train on")
        trajectories = batch.trajectories
        parts: list[Metrics] = []
        for rows in micro_batches(trajectories.num_tokens, self._spec.max_tokens_per_micro_batch):
            packed = pack_rows(trajectories, rows, self._device)
            index = trajectories.action_index(rows)
            flat = {
                name: torch.from_numpy(column[index]).to(self._device)
                for name, column in batch.columns.items()
            }
            columns = ActionColumns(flat=flat, grid=packed.grid)
            loss, metrics = self._loss(packed, columns, plan)
            loss.backward()  # type: ignore[no-untyped-call]
            self._updater.collect()
            parts.append(metrics)
        update = self._updater.update()
        last: Metrics = {
            "train/tokens": Metric(int(trajectories.num_tokens.sum()), reduction="sum"),
            "train/micro_batches": Metric(len(parts), reduction="sum"),
            "train/skipped_updates": update.pop("skipped"),
        }
        last |= {f"{self._spec.role}/{name}": metric for name, metric in update.items()}
        return read_metrics([*parts, last])

    def _score(
        self, batch: TrajectoryColumns, score: Callable[[PackedRows], Tensor]
    ) -> NDArray[np.float32]:
        """Apply ``score`` to micro-batches and put the results where the actions are."""
        out = np.empty(int(batch.num_actions.sum()), dtype=np.float32)
        with torch.inference_mode():
            done = [
                (rows, score(pack_rows(batch, rows, self._device)))
                for rows in micro_batches(batch.num_tokens, self._spec.max_tokens_per_micro_batch)
            ]
            for rows, result in done:
                out[batch.action_index(rows)] = result.float().cpu().numpy()
        return out

    def _loss(
        self, packed: PackedRows, columns: ActionColumns, plan: StepPlan
    ) -> tuple[Tensor, Metrics]:
        objective = self._spec.objective
        if isinstance(objective, ValueObjective):
            values = self._model.values(self._hidden(packed))
            return value_objective(objective, values, columns, plan)
        assert self._terms is not None
        logprobs, entropies = self._action_logprobs(packed)
        return policy_objective(self._terms, logprobs, entropies, columns, plan)

    def _hidden(self, rows: PackedRows) -> Tensor:
        """(M, D) hidden states of the tokens before the actions."""
        hidden = self._lm.hidden(rows.input_ids, rows.position_ids, rows.layout)
        return hidden.index_select(0, rows.predictors)

    def _action_logprobs(self, rows: PackedRows) -> tuple[Tensor, Tensor]:
        return action_logprobs(
            self._lm,
            self._hidden(rows),
            rows.targets,
            temperature=self._spec.temperature,
            chunk=self._chunk,
        )

    def module(self) -> torch.nn.Module | None:
        """The live ``CausalLM``; None for a critic, and under an adapter, whose merged weights ``buckets`` gives."""
        if self._model.adapter is not None or self._model.value_head is not None:
            return None
        return self._lm

    def _served(self) -> Iterator[tuple[str, Tensor]]:
        if self._model.adapter is not None:
            return self._model.adapter.served_weights(self._lm.model)
        return iter(self._lm.model.state_dict().items())

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the weights by Hugging Face names, at most 512 MiB at a time unless one tensor is larger."""
        bucket: dict[str, Tensor] = {}
        size = 0
        for name, tensor in self._served():
            if bucket and size + tensor.nbytes > BUCKET_BYTES:
                yield bucket
                bucket, size = {}, 0
            bucket[name] = tensor.detach()
            size += tensor.nbytes
        if bucket:
            yield bucket

    def checksum(self) -> str:
        """Digest of the weights as ``buckets`` gives them."""
        return checksum_of(dict(self._served()))

    def save(self, folder: Path) -> None:
        save_state(folder, self._model, self._updater)

    def load(self, folder: Path) -> None:
        load_state(folder, self._model, self._updater)

    def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder.

        Raises:
            ConfigError: ``ema`` is asked for and none is kept.
        """
        averages = self._updater.ema if self._updater is not None else {}
        if ema and not averages:
            raise ConfigError(f"the {self._spec.role} keeps no moving average; set --actor.ema")
        weights = dict(self._model.named_weights())
        with holding(weights, averages) if ema else nullcontext():
            export_model(
                self._model,
                self._spec.tokenizer_path or self._spec.model_path,
                folder,
                trust_remote_code=self._spec.trust_remote_code,
            )

    def offload(self) -> None:
        """Move weights and optimizer state to the host. Nothing to do on a CPU."""
        if self._device.type == "cpu":
            return
        if self._updater is not None:
            self._updater.offload()
        self._model.to("cpu")
        torch.cuda.empty_cache()

    def reload(self) -> None:
        """Undo ``offload``."""
        if self._device.type == "cpu":
            return
        self._model.to(self._device)
        if self._updater is not None:
            self._updater.reload(self._device)

    def close(self) -> None:
        """Drop model and optimizer."""
        self._updater = self._built = None
