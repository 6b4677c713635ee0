"""Moving a role out of a GPU's memory and back. What was on the host already stays there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_plugin_local.backend.role_model import RoleModel

from .replicated_training import ReplicatedTraining
from .scoring import SharedScoring, WholeScoring
from .zero_training import ZeroTraining

Held = ZeroTraining | ReplicatedTraining | WholeScoring | SharedScoring
HOST = torch.device("cpu")


class Offloading:
    """Remembers what it has moved."""

    def __init__(self, held: Held, role: RoleModel, device: torch.device) -> None:
        self._held, self._role, self._device = held, role, device
        self._moved: list[tuple[dict[str, Any], str]] = []
        self._moved_vectors: list[Tensor] = []

    def offload(self) -> None:
        """Move weights and training state to the host, as far as DeepSpeed lets them go."""
        held = self._held
        if isinstance(held, ZeroTraining):
            self._move_state(held)
            _engine_states(held, "offload_states")
        else:
            if isinstance(held, ReplicatedTraining):
                held.updater.offload()
            if not isinstance(held, SharedScoring):
                self._role.to(HOST)
        torch.cuda.empty_cache()

    def reload(self) -> None:
        """Undo ``offload``."""
        held = self._held
        if isinstance(held, ZeroTraining):
            _engine_states(held, "reload_states")
            self._return_state(held)
            return
        if not isinstance(held, SharedScoring):
            self._role.to(self._device)
        if isinstance(held, ReplicatedTraining):
            held.updater.reload(self._device)

    def _move_state(self, training: ZeroTraining) -> None:
        for state in training.optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.device != HOST:
                    state[key] = value.to(HOST)
                    self._moved.append((state, key))
        # DeepSpeed moves the float32 weights of the other stages itself, with the views that it has of them.
        own = training.masters if training.stage == 3 else []
        for vector in [*own, *training.ema]:
            if vector.device != HOST:
                vector.data = vector.data.to(HOST)
                self._moved_vectors.append(vector)

    def _return_state(self, training: ZeroTraining) -> None:
        for state, key in self._moved:
            state[key] = state[key].to(self._device)
        for vector in self._moved_vectors:
            vector.data = vector.data.to(self._device)
        self._moved, self._moved_vectors = [], []


def _engine_states(training: ZeroTraining, method: str) -> None:
    """Have DeepSpeed move weights and gradients. It cannot where parameters are offloaded for good, nor with the
    optimizer that it has for bfloat16 at stage 1."""
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kind

    if not hasattr(training.zero, method) or training.engine.zero_offload_param() is not None:
        return
    if method == "reload_states":
        training.engine.reload_states()
        return
    kinds = {Kind.lp_params, Kind.lp_grads}
    kinds |= {Kind.contiguous_grad_buffer} if training.stage == 3 else {Kind.hp_params}
    if training.stage == 3 and training.is_deep_compiled:
        # On its way back each gradient becomes another tensor, and the graphs would go on writing to the first.
        kinds -= {Kind.lp_grads}
    training.engine.offload_states(include=kinds, pin_memory=False)
