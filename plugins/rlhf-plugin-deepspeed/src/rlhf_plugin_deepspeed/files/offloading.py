"""Moves of a role from GPU memory to host memory and back; tensors already in host memory stay there.

DeepSpeed has calls of its own for that, ``offload_states`` and ``reload_states``. They copy through memory that is not
pinned, or pin it anew each time, at a tenth of the link's speed. Here storages lose their memory and get it back, so
that DeepSpeed's flat buffers and the views of them stay the same objects and need not be told.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.training.host_memory import HostMemory, expected_moments, release_cached

from ..scoring import SharedScoring, WholeScoring
from ..zero.replicated_training import ReplicatedTraining
from ..zero.zero_training import ZeroTraining

Held = ZeroTraining | ReplicatedTraining | WholeScoring | SharedScoring


class Offloading:
    """Moves of a role to the host and back."""

    def __init__(self, held: Held, role: RoleModel, device: torch.device) -> None:
        self._held, self._role, self._device = held, role, device
        self._state = HostMemory(device)
        self._weights = HostMemory(device)

    def prepare(self, *, weights: bool, state: bool) -> None:
        """Begin to make the host memory of what will leave, in the background: it takes longer than the moves."""
        held = self._held
        if state and isinstance(held, ZeroTraining):
            self._state.prepare(held.masters, copies=1 + expected_moments(held.optimizer))
        if state and isinstance(held, ReplicatedTraining):
            updater = held.updater
            masters = updater.masters.values()
            self._state.prepare(masters, copies=expected_moments(updater.optimizer))
        if weights:
            self._weights.prepare(_weights(self._role))

    def offload(self, *, weights: bool = True, state: bool = True) -> None:
        """Move the state of training and, with ``weights``, the model to the host."""
        held = self._held
        if weights and isinstance(held, ZeroTraining) and held.stage == 3:
            held.zero.empty_partition_cache()  # what was collected from other ranks need not be kept
        release_cached(self._device)
        if state:
            self._state.take(_state(held), emptied=_gradients(held))
        if weights:
            self._weights.take(_weights(self._role))

    def reload(self, *, state: bool = True) -> None:
        """Move the weights back that ``offload`` moved and, with ``state``, begin to move the state back."""
        self._weights.give_back()
        if state:
            self._state.begin_return()

    def finish_reload(self) -> None:
        """Have the state in its place."""
        self._state.finish_return()

    def close(self) -> None:
        """Free the host memory."""
        self._state.close()
        self._weights.close()


def _state(held: Held) -> Iterator[Tensor]:
    """Yield what an update reads and writes beside the model: float32 weights, optimizer state, average, reference."""
    if isinstance(held, ReplicatedTraining):
        yield from held.updater.state()
    if isinstance(held, ZeroTraining):
        yield from held.changing()


def _gradients(held: Held) -> Iterator[Tensor]:
    """Yield the buffers of gradients that DeepSpeed keeps between updates.

    Nobody reads them again: at stage 1 DeepSpeed has cleared them itself, and at stage 3 the first micro-batch of an
    update overwrites them. Stage 2 keeps none.
    """
    if not isinstance(held, ZeroTraining):
        return
    yield from getattr(held.zero, "fp32_groups_gradients_flat", ())
    if held.stage < 3 or held.is_deep_compiled:
        return  # the graphs of DeepCompile may hold gradients of their own beside the buffer
    yield held.zero.grad_partitions_flat_buffer
    buffers = (bucket.buffer for bucket in held.zero.ipg_buckets.values())
    yield from (buffer for buffer in buffers if buffer is not None)


def _weights(role: RoleModel) -> Iterator[Tensor]:
    """Yield the model's parameters and buffers, and at stage 3 this rank's parts of the parameters."""
    for parameter in role.parameters():
        yield parameter
        if (part := getattr(parameter, "ds_tensor", None)) is not None:
            yield part
    yield from role.buffers()
