"""Updates of whole parameters, for optimizers such as Muon, where ranks have cut parameters.

Each parameter has an owner among the ranks. The owner collects the parameter's weights, gradient and state from all
ranks, has the optimizer update the whole parameter, and sends every rank its parts back. So one rank updates each
parameter, and the ranks work at the same time. Between updates all state lies in the ranks' vectors, where clipping,
checkpoints and offloading find it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlhf_core import PluginError

from ..ranks.ranks import Ranks
from .collecting import Collected, Collecting
from .fragment import Fragment


class WholeUpdates(torch.optim.Optimizer):
    """Optimizer of the ranks' vectors that updates some parameter groups as whole parameters.

    Args:
        inner: the component's optimizer, made for the parameters before they were cut.
        whole: the parameters that ``inner`` has to see whole.
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
        """Set how the parameters were cut; a collective call before the first update.

        Args:
            vectors: this rank's float32 vectors.
            fragments: this rank's fragments of the parameters.
            shapes: the shape of each whole parameter by name.
            ranks: all ranks.
        """
        self._vectors, self._ranks = vectors, ranks
        self._collecting = Collecting(fragments, shapes, ranks)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the vectors in the parameter groups; they may be there all at once, or one after the other, a call
        each.

        Raises:
            PluginError: the optimizer keeps state that cannot be cut.
        """
        assert closure is None, "the gradients are there"
        self._inner.state = self.state
        for group in self.param_groups:
            if any(group is whole for whole in self._whole):
                if group["params"]:
                    self._update_whole(group)
            elif group["params"]:
                self._inner.param_groups = [group]
                self._inner.step()

    def _update_whole(self, group: Mapping[str, Any]) -> None:
        """Update every parameter that has a fragment in the group's vectors on any rank; a collective call."""
        vectors: dict[int, Tensor] = {}
        for vector in group["params"]:
            if vector.grad is None:  # on no rank: nothing depended on it
                continue
            vectors[next(at for at, known in enumerate(self._vectors) if known is vector)] = vector
        # A rank without a fragment in a vector has read no state of it from a checkpoint.
        before = self._agreed(
            {
                index: Kept.of(kept, vector.shape)
                for index, vector in vectors.items()
                if vector.numel() and (kept := self.state[vector])
            }
        )
        after: Kept | None = None
        for names in self._collecting.rounds(vectors):
            own = self._collecting.collect(
                names,
                {
                    index: [vector, _gradient(vector), *self._state_vectors(vector, before, index)]
                    for index, vector in vectors.items()
                },
            )
            state = self._update(group, own, before) if own else {}
            if after is None:
                # The form of the new state is agreed once: rank 0 owns a parameter in every round.
                form = {0: Kept.of(state, own.values[0].shape)} if own else {}
                after = self._agreed(form)[0]
            wholes = [own.values[0], *(state[key] for key in after.tensors)] if own else []
            self._collecting.give_back(
                names,
                wholes,
                {
                    index: [vector, *self._state_vectors(vector, {index: after}, index)]
                    for index, vector in vectors.items()
                },
            )
        if after is not None:
            for vector in vectors.values():
                self.state[vector].update(after.numbers_at(device_of_numbers([group], vector)))

    def _update(
        self, group: Mapping[str, Any], own: Collected, before: Mapping[int, Kept]
    ) -> dict[str, Any]:
        """Update a whole parameter in place, and return its new state by key.

        Args:
            own: weights, gradient and the state tensors that ``before`` names for its vector.
        """
        weights, gradient, *tensors = own.values
        parameter = nn.Parameter(weights)
        parameter.grad = gradient
        kept = before.get(own.vector)
        if kept is not None:
            numbers = kept.numbers_at(device_of_numbers([group], weights))
            self.state[parameter] = dict(zip(kept.tensors, tensors, strict=True)) | numbers
        self._inner.param_groups = [{**group, "params": [parameter]}]
        self._inner.step()
        return dict(self.state.pop(parameter, {}))

    def _state_vectors(self, vector: Tensor, forms: Mapping[int, Kept], index: int) -> list[Tensor]:
        """Return this rank's vectors of per-element state, zeros where there is none yet."""
        kept, form = self.state[vector], forms.get(index)
        keys = () if form is None else form.tensors
        for key in keys:
            if key not in kept:
                kept[key] = torch.zeros_like(vector, requires_grad=False)
        return [kept[key] for key in keys]

    def _agreed(self, own: dict[int, Kept]) -> dict[int, Kept]:
        """Return, for each key, the value of the first rank that has one; a collective call."""
        if self._ranks.world_size == 1:
            return own
        said: list[dict[int, Kept]] = [{}] * self._ranks.world_size
        dist.all_gather_object(said, own)
        return {key: value for of_rank in reversed(said) for key, value in of_rank.items()}


def _gradient(vector: Tensor) -> Tensor:
    assert vector.grad is not None
    return vector.grad


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Form of an optimizer's state of one parameter: the keys of per-element tensors, and single numbers."""

    tensors: tuple[str, ...]
    """Keys of the tensors with one number per element."""
    numbers: Mapping[str, Any]
    """Values that hold for the whole parameter, such as the count of its updates; tensors are on the host."""

    @classmethod
    def of(cls, state: Mapping[str, Any], shape: torch.Size) -> Kept:
        """Return the form of the state of a parameter or vector of this shape.

        Raises:
            PluginError: a tensor of the state is neither float32 of this shape nor a single number.
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
                    f"{tuple(shape)}; expected float32 and the parameter's shape, or a single number",
                    code="optimizer/needs-whole-parameters",
                )
        return cls(tensors=tuple(tensors), numbers=numbers)

    def numbers_at(self, device: torch.device) -> dict[str, Any]:
        """Return copies of the numbers by key, tensors among them on ``device``."""
        return {
            key: value.to(device, copy=True) if isinstance(value, Tensor) else value
            for key, value in self.numbers.items()
        }


def device_of_numbers(groups: Iterable[Mapping[str, Any]], vector: Tensor) -> torch.device:
    """Return the device on which torch's optimizers keep their step count.

    The count is on the host, unless the update is one kernel (``fused``) or captured in a CUDA graph (``capturable``).
    """
    on_device = any(group.get("fused") or group.get("capturable") for group in groups)
    return vector.device if on_device else torch.device("cpu")
