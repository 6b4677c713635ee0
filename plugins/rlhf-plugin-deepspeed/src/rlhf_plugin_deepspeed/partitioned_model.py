"""The module that DeepSpeed is given, and which parameters stage 3 keeps whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlhf_plugin_local.backend.role_model import RoleModel

ResultT = TypeVar("ResultT")


class PartitionedModel(nn.Module):
    """Runs what it is called with. DeepSpeed's own work starts and ends with the call of its module, while a role
    calls several parts of its model, in ways that depend on what is asked for."""

    def __init__(self, role: RoleModel) -> None:
        super().__init__()
        # Not the role itself: to share weights by tensor, DeepSpeed sets attributes such as ``num_heads`` on whatever
        # module has them, and they are read-only on ours.
        self.model = role.lm.model
        self.value_head = role.value_head
        self.config = role.lm.model.config
        self._compile_layers = role.lm.compile_layers

    def compile(self, **options: Any) -> None:
        """Compile the layers; whatever else ``work`` does is no business of a compiler's."""
        self._compile_layers(**options)

    def forward(self, work: Callable[[], ResultT]) -> ResultT:
        return work()


def head_modules(role: RoleModel) -> list[nn.Module]:
    """What turns hidden states into results."""
    return [
        role.value_head if role.value_head is not None else role.lm.model.get_output_embeddings()
    ]


def leave_whole(modules: Sequence[nn.Module]) -> None:
    """Take off the hooks by which stage 3 collects weights before a module's call and drops them after it."""
    for module in modules:
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()


class WholeHead:
    """Under stage 3, keeps the head's parameters whole on every rank.

    The head is applied to one chunk of tokens after the other, in the forward pass and again in the backward pass. To
    collect and drop its weights each time would cost more than the memory is worth, and would upset the order of
    layers that DeepSpeed records to fetch weights ahead of time.
    """

    def __init__(self, role: RoleModel) -> None:
        modules = head_modules(role)
        self._parameters: list[Any] = [p for module in modules for p in module.parameters()]
        for parameter in self._parameters:
            parameter.ds_persist = True
        leave_whole(modules)

    def fetch(self) -> None:
        """Collect what an optimizer step or another owner has taken apart."""
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        apart = [p for p in self._parameters if p.ds_status == ZeroParamStatus.NOT_AVAILABLE]
        if apart:
            apart[0].all_gather(param_list=apart)


class WholeWeights(Mapping[str, Tensor]):
    """The tensors of a partitioned model by name, each collected from all ranks when it is asked for.

    All ranks must ask for the same names in the same order.
    """

    def __init__(self, state: Mapping[str, Tensor], owners: Mapping[str, nn.Parameter]) -> None:
        self._state = state
        self._owners = owners

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __getitem__(self, name: str) -> Tensor:
        import deepspeed

        owner = self._owners.get(name)
        if owner is None:
            return self._state[name].detach()
        with deepspeed.zero.GatheredParameters([owner]), torch.no_grad():
            return owner.detach().clone()
