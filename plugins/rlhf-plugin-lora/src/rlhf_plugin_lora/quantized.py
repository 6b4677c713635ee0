"""Layers of bitsandbytes that hold their weight in 4 bits, made to compute alike with and without a gradient."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def compute_in_the_dtype_of_inputs(model: nn.Module) -> None:
    """Have layers in 4 bits compute in the dtype of their inputs, under autocast in autocast's, on every path.

    bitsandbytes would compute in one fixed dtype. And on CPUs with bfloat16 instructions it would repack the weights in
    the first pass without a gradient, after which passes with one silently drop the gradient of the layer's input.
    """
    bitsandbytes = sys.modules.get("bitsandbytes")
    if bitsandbytes is None:  # nothing was quantized
        return
    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.compute_dtype, module.compute_type_is_set = None, True
            module.support_avx512bf16_for_cpu = False
            module.register_forward_pre_hook(_as_autocast)


@torch.no_grad()
def unpacked(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the weight (out, in) of each layer in 4 bits, by its name in the plain model, in the numbers that the layer
    multiplies by when its inputs have ``dtype``."""
    bitsandbytes = sys.modules["bitsandbytes"]
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            packed: Any = module.weight
            weight = bitsandbytes.functional.dequantize_4bit(packed.data, packed.quant_state)
            yield f"{name.removesuffix('.base_layer')}.weight", weight.to(dtype)


def _as_autocast(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
    del module
    (hidden,) = inputs
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return None
    return (hidden.to(torch.get_autocast_dtype(device)),)
