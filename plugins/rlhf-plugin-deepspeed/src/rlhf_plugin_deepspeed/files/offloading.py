"""Moves of a role from GPU memory to host memory and back; tensors already in host memory stay there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_torch.models.role_model import RoleModel

from ..scoring import SharedScoring, WholeScoring
from ..zero.replicated_training import ReplicatedTraining
from ..zero.zero_training import ZeroTraining

Held = ZeroTraining | ReplicatedTraining | WholeScoring | SharedScoring
HOST = torch.device("cpu")


class Offloading:
    """One move of a role to the host and back, with the list of the tensors that were moved."""

    def __init__(self, held: Held, role: RoleModel, device: torch.device) -> None:
        self._held, self._role, self._device = held, role, device
        self._moved: list[tuple[dict[str, Any], str]] = []
        self._moved_vectors: list[Tensor] = []

    def offload(self) -> None:
        """Move weights and training state to the host, as far as DeepSpeed can move them."""
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
        """Move everything that ``offload`` moved back to the device."""
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
        # At stages 1 and 2 DeepSpeed moves the float32 weights (``hp_params``) itself, with its views of them.
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
    """Have DeepSpeed move weights and gradients, if it can.

    DeepSpeed cannot with ``offload_param``, nor with its separate optimizer for bfloat16 parameters at stage 1.
    """
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kind

    if not hasattr(training.zero, method) or training.engine.zero_offload_param() is not None:
        return
    if method == "reload_states":
        training.engine.reload_states()
        return
    kinds = {Kind.lp_params, Kind.lp_grads}
    kinds |= {Kind.contiguous_grad_buffer} if training.stage == 3 else {Kind.hp_params}
    if training.stage == 3 and training.is_deep_compiled:
        # Reloading would make each gradient a new tensor, and the graphs would go on writing to the old tensor.
        kinds -= {Kind.lp_grads}
    training.engine.offload_states(include=kinds, pin_memory=False)
