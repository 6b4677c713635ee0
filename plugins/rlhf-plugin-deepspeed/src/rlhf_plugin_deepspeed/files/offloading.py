"""Moves of a role from GPU memory to host memory and back; tensors already in host memory stay there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.training.host_memory import HostMemory

from ..scoring import SharedScoring, WholeScoring
from ..zero.replicated_training import ReplicatedTraining
from ..zero.zero_training import ZeroTraining

Held = ZeroTraining | ReplicatedTraining | WholeScoring | SharedScoring


class Offloading:
    """Moves of a role to the host and back.

    Weights and gradients of ZeRO move by DeepSpeed's own calls. What belongs to the optimizer and to the moving average
    moves apart from them: DeepSpeed would forget tensors that it does not know.
    """

    def __init__(self, held: Held, role: RoleModel, device: torch.device) -> None:
        self._held, self._role = held, role
        self._state = HostMemory(device)
        self._weights = HostMemory(device)
        self._by_engine = False
        """Whether DeepSpeed has moved what it can move itself."""

    def offload(self, *, weights: bool = True) -> None:
        """Move the state of training to the host and, with ``weights``, the model, as far as DeepSpeed can move it."""
        held = self._held
        if isinstance(held, ReplicatedTraining):
            self._state.take(held.updater.state())
        if isinstance(held, ZeroTraining):
            self._state.take(_vectors(held))
            if weights and not self._by_engine:
                self._by_engine = _engine_states(held, "offload_states")
                if not self._by_engine and held.stage < 3:
                    self._weights.take([*self._role.parameters(), *held.masters])
        elif weights and not isinstance(held, SharedScoring):
            self._weights.take([*self._role.parameters(), *self._role.buffers()])
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def reload(self, *, state: bool = True) -> None:
        """Move everything that ``offload`` moved back to the device, or what DeepSpeed and the model hold alone."""
        if self._by_engine:
            assert isinstance(self._held, ZeroTraining)
            _engine_states(self._held, "reload_states")
            self._by_engine = False
        self._weights.give_back()
        if state:
            self._state.give_back()

    def close(self) -> None:
        """Free the host memory."""
        self._state.close()
        self._weights.close()


def _vectors(training: ZeroTraining) -> Iterator[Tensor]:
    """Yield the optimizer's state, the moving average, and at stage 3 the float32 weights."""
    for state in training.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
    # At stages 1 and 2 DeepSpeed moves the float32 weights (``hp_params``) itself, with its views of them.
    yield from training.masters if training.stage == 3 else []
    yield from training.ema


def _engine_states(training: ZeroTraining, method: str) -> bool:
    """Have DeepSpeed move weights and gradients, if it can, and return whether it could.

    DeepSpeed cannot with ``offload_param``, where the weights are in host memory already, nor with its separate
    optimizer for bfloat16 parameters at stage 1.
    """
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kind

    if not hasattr(training.zero, method) or training.engine.zero_offload_param() is not None:
        return False
    if method == "reload_states":
        training.engine.reload_states()
        return True
    kinds = {Kind.lp_params, Kind.lp_grads}
    kinds |= {Kind.contiguous_grad_buffer} if training.stage == 3 else {Kind.hp_params}
    if training.stage == 3 and training.is_deep_compiled:
        # Reloading would make each gradient a new tensor, and the graphs would go on writing to the old tensor.
        kinds -= {Kind.lp_grads}
    training.engine.offload_states(include=kinds, pin_memory=False)
    return True
