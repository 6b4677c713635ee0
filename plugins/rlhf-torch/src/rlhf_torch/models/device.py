"""Where a role computes, and in which precision."""

from __future__ import annotations

import torch

from rlhf_core import ConfigError

SMALL = 1_000_000
"""Models below this many parameters compute in float32: they are for tests, which compare bits."""


def choose_device(wanted: str) -> torch.device:
    """Return the device for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ConfigError: a GPU is asked for and there is none.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--backend.torch.device cuda: torch sees no GPU here. Set --backend.torch.device cpu, or install a torch "
            "build for your GPU."
        )
    return torch.device(wanted)


def choose_compute_dtype(
    wanted: str, dtype: torch.dtype, num_parameters: int, device: torch.device
) -> torch.dtype:
    """Return the dtype of the matmuls.

    Raises:
        ConfigError: float32 is asked for with bfloat16 parameters, whose bits are already gone.
    """
    if dtype != torch.float32:
        if wanted == "float32":
            raise ConfigError(
                "--backend.torch.compute_dtype float32 with --model.dtype bfloat16: the parameters hold 8 bits. "
                "Set --model.dtype float32."
            )
        return dtype
    if wanted != "auto":
        return torch.bfloat16 if wanted == "bfloat16" else torch.float32
    if num_parameters < SMALL or not _is_fast_in_bfloat16(device):
        return torch.float32
    return torch.bfloat16


def _is_fast_in_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Without these instructions bfloat16 matmuls on a CPU are emulated, at a fraction of float32's speed.
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
