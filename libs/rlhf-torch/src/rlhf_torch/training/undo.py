"""Going back to the state before a step's first update: a copy in host memory of everything that updates change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

TOO_LARGE = (
    "the %s is not copied before a step: it has %.3g GiB of weights and training state on a rank, and "
    "checkpoint.undo_gib is %.3g. A step that fails after its first update falls back to the newest checkpoint"
)


class Changing(Protocol):
    """The training of a role, as far as this process has it."""

    updates: int
    """Number of updates so far."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer."""

    def changing(self) -> Iterable[Tensor]:
        """Return every tensor that updates change: weights, float32 copies, optimizer state, average, reference."""

    def drop_gradient(self) -> None:
        """Forget the gradient that has been collected."""


class Undo:
    """The state of a trained role before one of its updates: of the same parts as a checkpoint's.

    Args:
        role: name in messages.
        model: its buffers are kept too, as updates may change those of experts.
        training: the trained weights and the state of training, or one rank's part of them.
        largest: returns the largest of a number over the ranks of the role, which so keep the state together or not at
            all; a collective call. None: this process has the whole role.
    """

    def __init__(
        self,
        role: str,
        model: nn.Module,
        training: Changing,
        largest: Callable[[int], int] | None = None,
    ) -> None:
        self._role = role
        self._model = model
        self._training = training
        self._largest = largest
        self._number: int | None = None
        """Number of updates that had begun when the state was kept; None: nothing is kept."""
        self._tensors: Sequence[Tensor] = ()
        """The tensors as objects of the role, whose values are in the copies."""
        self._copies: list[Tensor] = []
        """Host memory, which is written again at each step: making it takes longer than the copy."""
        self._state: Mapping[Tensor, Mapping[str, Any]] = {}
        """State of the optimizer: its tensors, which are among ``_tensors``, and its plain values."""
        self._groups: Sequence[Mapping[str, Any]] = ()
        """Values of its parameter groups, but not the parameters."""
        self._updates = 0
        self._said = False
        """Whether the log has that this role is too large."""

    def keep(self, number: int, max_bytes: int) -> None:
        """Keep the present state if it has at most so many bytes on every rank, in place of what was kept before; else
        say so, once.

        Args:
            number: of updates that have begun so far; ``restore`` names the state by it.
        """
        self._number = None
        training = self._training
        tensors = [*training.changing(), *self._model.buffers()]
        size = sum(tensor.nbytes for tensor in tensors)
        largest = size if self._largest is None else self._largest(size)
        if largest > max_bytes:
            self._copies.clear()
            if not self._said:
                log.info(TOO_LARGE, self._role, largest / 2**30, max_bytes / 2**30)
                self._said = True
            return
        for at, tensor in enumerate(tensors):
            self._copy(at, tensor.detach())
        del self._copies[len(tensors) :]
        optimizer = training.optimizer
        self._tensors = tensors
        self._state = {parameter: _plain(values) for parameter, values in optimizer.state.items()}
        self._groups = [
            {key: deepcopy(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        self._updates = training.updates
        self._number = number

    def _copy(self, at: int, tensor: Tensor) -> None:
        copies = self._copies
        if at == len(copies) or (copies[at].shape, copies[at].dtype) != (
            tensor.shape,
            tensor.dtype,
        ):
            # The optimizer has come to keep something, so what follows has another place.
            del copies[at:]
            empty = torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
            )
            copies.append(empty)
        copies[at].copy_(tensor)

    @torch.no_grad()
    def restore(self, number: int) -> bool:
        """Bring the state back that was kept when so many updates had begun, to the bit; False: it was not kept."""
        training = self._training
        if self._number != number:
            return False
        training.drop_gradient()
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.detach().copy_(copy)
        optimizer = training.optimizer
        optimizer.state.clear()
        for parameter, values in self._state.items():
            optimizer.state[parameter] = _plain(values)
        for group, options in zip(optimizer.param_groups, self._groups, strict=True):
            for new in group.keys() - options.keys() - {"params"}:
                del group[new]
            group.update(deepcopy(options))
        training.updates = self._updates
        return True


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with tensors as they are, and copies of everything else."""
    return {
        key: value if isinstance(value, Tensor) else deepcopy(value)
        for key, value in values.items()
    }
