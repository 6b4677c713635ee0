"""The calls of ``TrainBackend`` that move a role to host memory and back, for backends that own their tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..models.role_model import RoleModel
from ..training.host_memory import HostMemory, expected_moments, release_cached
from .scoring_backend import ScoringBackend


class LeavingRole(ScoringBackend):
    """A role whose tensors leave for host memory: weights and the state of training, each by itself."""

    _device: torch.device
    _state_out: HostMemory
    _state_arrives = False
    """True from ``reload`` on until somebody has waited for the state."""
    _weights_out: HostMemory

    def _leaves_from(self, device: torch.device) -> None:
        """Set the device that the role's tensors leave."""
        self._device = device
        self._state_out, self._weights_out = HostMemory(device), HostMemory(device)

    def _state_tensors(self) -> Iterable[Tensor] | None:
        """Return the tensors of the state of training; None: the role is not trained."""
        raise NotImplementedError

    def _weight_tensors(self, model: RoleModel) -> Iterable[Tensor]:
        """Return parameters and buffers, as far as this rank has them."""
        return [*model.parameters(), *model.buffers()]

    def _prepare_state(self, masters: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Begin to make the host memory of the state, in the background: it takes longer than the moves."""
        self._state_out.prepare(self._state_tensors() or ())
        self._state_out.prepare(masters, copies=expected_moments(optimizer))

    def _wait_for_state(self) -> None:
        """Return when the state of training may be read and written.

        Raises:
            PluginError: it is in host memory.
        """
        self._require_state()
        if self._state_arrives:
            self._state_out.finish_return()
            self._state_arrives = False

    def offload(self, *, weights: bool = True, state: bool = True) -> None:
        """Move the state of training and, with ``weights``, the model to host memory; a base that roles share moves
        once."""
        release_cached(self._device)
        if state and (tensors := self._state_tensors()) is not None:
            self._state_out.take(tensors)
            # What was arriving has ended in ``take``.
            self._state_is_out, self._state_arrives = True, False
        if weights and self._open is not None:
            self._weights_out.take(self._weight_tensors(self._open.model))
            self._weights_are_out = True

    def reload(self, *, state: bool = True) -> None:
        """Move back what ``offload`` moved, or the weights alone. The state comes beside what is computed next."""
        self._weights_out.give_back()
        self._weights_are_out = False
        if state:
            self._state_out.begin_return()
            self._state_is_out, self._state_arrives = False, True

    def _drop_host_memory(self) -> None:
        self._state_out.close()
        self._weights_out.close()
