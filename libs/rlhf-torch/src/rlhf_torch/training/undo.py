"""Going back to the state before a step's first update: a copy in host memory of everything that updates change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .updater import Updater


@dataclass(frozen=True, slots=True)
class _Kept:
    """State that was kept at one update."""

    number: int
    """Number of updates that had begun before."""
    tensors: Sequence[Tensor]
    """The tensors as objects of the role, whose values are in the copies."""
    optimizer: Mapping[Tensor, Mapping[str, Any]]
    """State of the optimizer: its tensors, which are among ``tensors``, and its plain values."""
    groups: Sequence[Mapping[str, Any]]
    """Of its parameter groups: everything but the parameters."""
    updates: int


class Undo:
    """The state of a trained role before one of its updates: of the same parts as a checkpoint's.

    Args:
        model: its buffers are kept too, as updates may change those of experts.
        updater: the trained weights and the state of training.
    """

    def __init__(self, model: nn.Module, updater: Updater) -> None:
        self._model = model
        self._updater = updater
        self._copies: list[Tensor] = []
        """Host memory, which is written again at each step: making it takes longer than the copy."""
        self._kept: _Kept | None = None

    def keep(self, number: int, max_bytes: int) -> None:
        """Keep the present state if it has at most so many bytes, in place of what was kept before.

        Args:
            number: of updates that have begun so far; ``restore`` names the state by it.
        """
        self._kept = None
        updater = self._updater
        tensors = [*updater.weights.values(), *self._model.buffers(), *updater.state()]
        if sum(tensor.nbytes for tensor in tensors) > max_bytes:
            self._copies.clear()
            return
        for at, tensor in enumerate(tensors):
            self._copy(at, tensor.detach())
        del self._copies[len(tensors) :]
        self._kept = _Kept(
            number,
            tensors,
            {parameter: _plain(values) for parameter, values in updater.optimizer.state.items()},
            [_options(group) for group in updater.optimizer.param_groups],
            updater.updates,
        )

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
        kept, updater = self._kept, self._updater
        if kept is None or kept.number != number:
            return False
        updater.drop_gradients()
        for tensor, copy in zip(kept.tensors, self._copies, strict=True):
            tensor.detach().copy_(copy)
        optimizer = updater.optimizer
        optimizer.state.clear()
        for parameter, values in kept.optimizer.items():
            optimizer.state[parameter] = _plain(values)
        for group, options in zip(optimizer.param_groups, kept.groups, strict=True):
            for new in group.keys() - options.keys() - {"params"}:
                del group[new]
            group.update(deepcopy(options))
        updater.updates = kept.updates
        return True


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: deepcopy(value) for key, value in group.items() if key != "params"}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with tensors as they are, and copies of everything else."""
    return {
        key: value if isinstance(value, Tensor) else deepcopy(value)
        for key, value in values.items()
    }
