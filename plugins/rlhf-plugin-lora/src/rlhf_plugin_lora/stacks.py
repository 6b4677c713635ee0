"""Factors beside the stacked experts of a mixture: one pair for each expert, in PEFT's places and in PEFT's files.

Transformers holds the experts of a layer in parameters of three dimensions, each a stack of E matrices. A stack W
becomes W + s B A with A (E, r, in) and B (E, out, r), as PEFT's ``target_parameters`` have it: its ``ParamWrapper``
stands around the module of the experts, one around the other if several of the module's parameters are adapted.

PEFT exchanges the parameter of the module for the sum in each pass by a parametrization, which makes a class of the
module anew; compiled layers break there, and DeepSpeed finds none of its weights. Here the sums are arguments of the
call. The sum, and with it the gradients, are PEFT's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.func import functional_call

from rlhf_torch.adapters.stacks import plain_name


class StackFactors(ParamWrapper):  # type: ignore[misc]  # PEFT has no types
    """The module of a layer's experts with factors of one of its stacks; other ones may be around it and inside."""

    reads_inside = True  # so ranks that share weights collect them as a whole

    # Any: the experts of each family have arguments of their own.
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the experts compute with the sums in place of their stacks."""
        experts = self.get_base_layer()
        if self.disable_adapters:
            return experts(*inputs, **named)
        sums = {each.parameter_name: each.summed() for each in self.with_inner()}
        return functional_call(experts, sums, inputs, named)

    def with_inner(self) -> Iterator[StackFactors]:
        """Yield this one and those inside of it, each of another stack of the same experts."""
        layer: nn.Module = self
        while isinstance(layer, StackFactors):
            yield layer
            layer = layer.base_layer

    def summed(self) -> Tensor:
        """Return W + s B A (E, ., .) in the dtype of W, also under autocast."""
        weight: Tensor = self.get_param()
        (pair,) = self.active_adapters
        left, right = (factor.to(weight.dtype) for factor in self._factors(pair))
        with torch.autocast(weight.device.type, enabled=False):
            total: Tensor = torch.baddbmm(weight, left, right, alpha=self.scaling[pair])
        return total

    def merged(self, weight: Tensor, pair: str) -> Tensor:
        """Return W + s B A of the plain model's stack, in float32 and rounded once; ranks share it as they share W."""
        left, right = (_beside(factor.float(), weight) for factor in self._factors(pair))
        total: Tensor = weight.float() + torch.bmm(left, right) * self.scaling[pair]
        return total.to(weight.dtype)

    def _factors(self, pair: str) -> tuple[Tensor, Tensor]:
        """Return two stacks of factors (E, ., r) and (E, r, .) whose products have the shape of the parameter."""
        a, b = _whole(self.lora_A[pair].weight), _whole(self.lora_B[pair].weight)
        a = a.reshape(self.num_experts, -1, a.shape[1])  # (E, r, in)
        b = b.reshape(len(b), -1, self.num_experts).permute(2, 0, 1)  # (E, out, r)
        # Some families, such as GPT-OSS, have matrices (in, out).
        is_transposed = getattr(self.get_base_layer(), "is_transposed", False)
        return (a.transpose(1, 2), b.transpose(1, 2)) if is_transposed else (b, a)


def take_over(model: nn.Module) -> None:
    """Have PEFT's wrappers of stacks, which have all their adapters, compute as ``StackFactors`` do."""
    for layer in model.modules():
        # PEFT tells its wrappers by the name of their class, so ours cannot be made in their place.
        if type(layer) is ParamWrapper:
            layer.__class__ = StackFactors


def stack_factors(model: nn.Module) -> dict[str, StackFactors]:
    """Return the adapted stacks by their parameters' names in the plain model."""
    return {
        f"{plain_name(name)}.{layer.parameter_name}": layer
        for name, layer in model.named_modules()
        if isinstance(layer, StackFactors)
    }


def _whole(factor: Tensor) -> Tensor:
    return factor.full_tensor() if isinstance(factor, DTensor) else factor


def _beside(factor: Tensor, weight: Tensor) -> Tensor:
    """Return a stack of factors, which every rank has whole, cut like ``weight`` if ranks share that by experts."""
    if not isinstance(weight, DTensor):
        return factor
    return distribute_tensor(
        factor.contiguous(), weight.device_mesh, weight.placements, src_data_rank=None
    )
