"""The module that DeepSpeed wraps, and at stage 3 the head that stays whole and the weights collected by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlhf_torch.models.role_model import RoleModel

ResultT = TypeVar("ResultT")


class PartitionedModel(nn.Module):
    """Module that runs the function that it is called with.

    DeepSpeed's own work starts and ends with one call of the module that it wraps. A role calls several parts of its
    model, and which parts depends on the results that are asked for. So the whole pass is one function.
    """

    def __init__(self, role: RoleModel) -> None:
        super().__init__()
        # The parts and not the role's ``CausalLM``: for ``tensor_parallel`` DeepSpeed sets attributes such as
        # ``num_heads`` on every module that has them, and they are read-only on ``CausalLM``.
        self.model = role.lm.model
        self.value_head = role.value_head
        self.config = role.lm.model.config
        self._compile_layers = role.lm.compile_layers

    def compile(self, **options: Any) -> None:
        """Compile the layers only; the rest of ``work``, such as the head and the loss, stays eager."""
        self._compile_layers(**options)

    def forward(self, work: Callable[[], ResultT]) -> ResultT:
        """Return the result of ``work``."""
        return work()


def head_modules(role: RoleModel) -> list[nn.Module]:
    """Return the head as a list of modules: the value head of a critic, else the output embeddings."""
    return [
        role.value_head if role.value_head is not None else role.lm.model.get_output_embeddings()
    ]


def leave_whole(modules: Sequence[nn.Module]) -> None:
    """Remove the hooks by which stage 3 collects a module's weights before its call and drops the weights after it.

    A head under an adapter has modules of its own, with such hooks too.
    """
    for part in (part for module in modules for part in module.modules()):
        part._forward_pre_hooks.clear()
        part._forward_hooks.clear()


class WholeHead:
    """The head at stage 3, whose parameters stay whole on every rank.

    The head is applied to one chunk of tokens after the other, in the forward pass and again in the backward pass.
    Collecting and dropping its weights for each chunk would cost more than the memory is worth. It would also upset
    the order of layers that DeepSpeed records to fetch weights ahead of time.
    """

    def __init__(self, role: RoleModel) -> None:
        modules = head_modules(role)
        self._parameters: list[Any] = [p for module in modules for p in module.parameters()]
        for parameter in self._parameters:
            parameter.ds_persist = True
        leave_whole(modules)

    def fetch(self) -> None:
        """Collect the head's parameters that an update or another caller has partitioned; a collective call."""
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        apart = [p for p in self._parameters if p.ds_status == ZeroParamStatus.NOT_AVAILABLE]
        if apart:
            apart[0].all_gather(param_list=apart)


class WholeWeights(Mapping[str, Tensor]):
    """Tensors of a partitioned model by name. Reading a name collects its tensor from all ranks.

    All ranks must read the same names in the same order.

    Args:
        state: the model's ``state_dict``, whose parameters are partitioned.
        owners: the parameter behind each name; a name without one (a buffer) is whole in ``state``.
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
