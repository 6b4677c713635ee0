"""Optimizers that look at whole parameters, such as Muon, where ZeRO has cut them.

Each parameter has an owner among the ranks, which gets its weights, gradient and state from all of them, has the
optimizer update it, and gives every rank its parts back. So each parameter is updated once, the ranks work at the same
time, and between updates everything lies in DeepSpeed's vectors, where clipping, checkpoints and sleep find it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlhf_core import PluginError

from .collecting import Collecting
from .fragments import Fragment
from .ranks import Ranks


class WholeUpdates(torch.optim.Optimizer):
    """Updates the ranks' vectors, some of its parameter groups by whole parameters.

    Args:
        inner: the optimizer, made for the parameters before they were cut.
        whole: the parameters that it has to see whole.
    """

    def __init__(self, inner: torch.optim.Optimizer, whole: Collection[nn.Parameter]) -> None:
        self._inner = inner
        ids = {id(parameter) for parameter in whole}
        self._whole = [
            group for group in inner.param_groups if ids & {id(p) for p in group["params"]}
        ]
        self._vectors: Sequence[Tensor]
        self._collecting: Collecting
        self._ranks: Ranks
        super().__init__(inner.param_groups, {})

    def attach(
        self,
        vectors: Sequence[Tensor],
        fragments: Sequence[Fragment],
        shapes: Mapping[str, torch.Size],
        ranks: Ranks,
    ) -> None:
        """Say how the parameters were cut; all ranks do, before the first step."""
        self._vectors, self._ranks = vectors, ranks
        self._collecting = Collecting(fragments, shapes, ranks)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the vectors that the groups have now: DeepSpeed shows one after the other.

        Raises:
            PluginError: the optimizer keeps something that cannot be cut.
        """
        assert closure is None, "DeepSpeed has computed the gradients"
        self._inner.state = self.state
        for group in self.param_groups:
            if any(group is whole for whole in self._whole):
                for vector in group["params"]:
                    self._update_vector(group, vector)
            elif group["params"]:
                self._inner.param_groups = [group]
                self._inner.step()

    def _update_vector(self, group: dict[str, Any], vector: Tensor) -> None:
        """Update all parameters with a part in this vector of any rank."""
        assert vector.grad is not None
        index = next(at for at, known in enumerate(self._vectors) if known is vector)
        kept = self.state[vector]
        # A rank without any part has read no state from a checkpoint.
        before = self._agreed(Kept.of(kept, vector.shape) if kept else None)
        after: Kept | None = None
        for names in self._collecting.rounds(index):
            vectors = [vector, vector.grad, *self._state_vectors(vector, before)]
            own = self._collecting.collect(names, vectors)
            state = self._update(group, own, before) if own else {}
            if after is None:  # the first rank has a parameter in every round
                after = self._agreed(Kept.of(state, own[0].shape) if own else None)
                assert after is not None
            wholes = [own[0], *(state[key] for key in after.tensors)] if own else []
            vectors = [vector, *self._state_vectors(vector, after)]
            self._collecting.give_back(names, wholes, vectors)
        if after is not None:
            kept.update(after.numbers_at(device_of_numbers([group], vector)))

    def _update(
        self, group: Mapping[str, Any], own: Sequence[Tensor], before: Kept | None
    ) -> dict[str, Any]:
        """Update a whole parameter in place, and return its state."""
        weights, gradient, *tensors = own
        parameter = nn.Parameter(weights)
        parameter.grad = gradient
        if before is not None:
            numbers = before.numbers_at(device_of_numbers([group], weights))
            self.state[parameter] = dict(zip(before.tensors, tensors, strict=True)) | numbers
        self._inner.param_groups = [{**group, "params": [parameter]}]
        self._inner.step()
        return dict(self.state.pop(parameter, {}))

    def _state_vectors(self, vector: Tensor, form: Kept | None) -> list[Tensor]:
        """This rank's parts of what is kept for each element, made where there is none yet."""
        kept = self.state[vector]
        keys = () if form is None else form.tensors
        for key in keys:
            if key not in kept:
                kept[key] = torch.zeros_like(vector, requires_grad=False)
        return [kept[key] for key in keys]

    def _agreed(self, own: Kept | None) -> Kept | None:
        """Return what the first rank says that knows."""
        if self._ranks.world_size == 1:
            return own
        said: list[Kept | None] = [None] * self._ranks.world_size
        dist.all_gather_object(said, own)
        return next((one for one in said if one is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What an optimizer keeps for a parameter."""

    tensors: tuple[str, ...]
    """Keys of what has a number for each element."""
    numbers: Mapping[str, Any]
    """What is said once for the whole parameter, such as the count of its updates; tensors on the host."""

    @classmethod
    def of(cls, state: Mapping[str, Any], shape: torch.Size) -> Kept:
        """Sort the state of a parameter or vector of this shape.

        Raises:
            PluginError: something in it can neither be cut nor shared.
        """
        tensors, numbers = [], {}
        for key, value in state.items():
            if not isinstance(value, Tensor):
                numbers[key] = value
            elif value.dim() == 0:
                numbers[key] = value.cpu()
            elif value.shape == shape and value.dtype == torch.float32:
                tensors.append(key)
            else:
                raise PluginError(
                    f"it keeps {key} of shape {tuple(value.shape)} in {value.dtype} for a parameter of shape "
                    f"{tuple(shape)}; expected float32 and the parameter's shape, or a single number"
                )
        return cls(tensors=tuple(tensors), numbers=numbers)

    def numbers_at(self, device: torch.device) -> dict[str, Any]:
        """Return copies of the numbers, tensors on ``device``."""
        return {
            key: value.to(device, copy=True) if isinstance(value, Tensor) else value
            for key, value in self.numbers.items()
        }


def device_of_numbers(groups: Iterable[Mapping[str, Any]], vector: Tensor) -> torch.device:
    """Where torch's optimizers keep their step count: on the host, unless one kernel does the whole update."""
    on_device = any(group.get("fused") or group.get("capturable") for group in groups)
    return vector.device if on_device else torch.device("cpu")
