"""Layers of bitsandbytes that hold their weight in 4 bits, made to compute alike with and without a gradient."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

ROUNDING = 0.01
"""Share of a layer's largest weight by which two ways of unpacking it may differ."""


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
    warn_of_wrong_weights(model)


@torch.no_grad()
def warn_of_wrong_weights(model: nn.Module) -> None:
    """Warn if bitsandbytes unpacks layers of some width into other numbers than it packed, one layer of each width.

    Its kernel for CPUs with AVX-512 takes the scales of other blocks where a block of 64 numbers ends within a row
    (0.50.2). Layers of real models are rarely that narrow or that odd.
    """
    library = sys.modules["bitsandbytes"]
    seen: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, library.nn.Linear4bit) or module.in_features in seen:
            continue
        seen.add(module.in_features)
        packed: Any = module.weight
        if packed.device.type != "cpu" or packed.quant_state is None:
            continue
        plain = _plainly_unpacked(packed, library)
        weight = library.functional.dequantize_4bit(packed.data, packed.quant_state)
        off = ((weight.float() - plain).abs().max() / plain.abs().max()).item()
        if off > ROUNDING:
            log.warning(
                "bitsandbytes unpacks layers in 4 bits with %d inputs wrongly on this processor (%s is off by %.2f of "
                "its largest weight), so another base is trained than the files have. Widths that are multiples of %d "
                "are right; else choose adapter lora, or a GPU",
                module.in_features,
                name,
                off,
                packed.quant_state.blocksize,
            )


def _plainly_unpacked(packed: Any, library: Any) -> Tensor:
    """Return the weight (out, in) as plain operations unpack it: each number's level times its block's scale."""
    state = packed.quant_state
    scales = state.absmax
    if state.nested:
        scales = library.functional.dequantize_blockwise(scales, state.state2) + state.offset
    pairs = packed.data.view(torch.uint8).flatten()
    levels = torch.stack([pairs >> 4, pairs & 15], dim=1).flatten().long()
    count = state.shape.numel()
    weight: Tensor = state.code[levels[:count]] * scales.repeat_interleave(state.blocksize)[:count]
    return weight.view(state.shape)


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
