"""Bytes of a weight in a base that is quantized as it is loaded, read from the options of ``from_pretrained``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BLOCK = 64
"""Number of weights that share a scale in bitsandbytes' 4 bits."""
SCALES = 256
"""Number of scales that share a scale of their own if they are quantized too."""


def linear_weight_bytes(load_options: Mapping[str, Any]) -> float | None:
    """Return the bytes of one weight of a linear layer, scales included; None if layers are not quantized.

    In 4 bits ``1/2 + 4/64`` bytes; with quantized scales ``1/2 + 1/64 + 4/(64 * 256)``, which is 4.127 bits. In 8 bits
    1 byte: a row's scale is not counted.

    Source: Dettmers et al. 2023 (QLoRA), arXiv:2305.14314, section 3.

    Raises:
        RuntimeError: the options quantize in another way.
    """
    config = load_options.get("quantization_config")
    if config is None:
        return None
    if getattr(config, "load_in_4bit", False):
        if config.bnb_4bit_use_double_quant:
            return 0.5 + 1 / BLOCK + 4 / (BLOCK * SCALES)
        return 0.5 + 4 / BLOCK
    if getattr(config, "load_in_8bit", False):
        return 1.0
    raise RuntimeError(f"{type(config).__name__}: its bytes of a weight are not known")
