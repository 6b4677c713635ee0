"""Choice of the device on which a role computes, and of its precision."""

from __future__ import annotations

import torch

from rlhf_core import ConfigError

SMALL = 1_000_000
"""Number of parameters below which ``auto`` computes in float32: such models are for tests, which compare bits."""


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
            "build for your GPU.",
            code="gpu/not-visible",
        )
    return torch.device(wanted)


def choose_compute_dtype(
    wanted: str, dtype: torch.dtype, num_parameters: int, device: torch.device
) -> torch.dtype:
    """Return the dtype of the matmuls.

    ``auto`` takes bfloat16 where the device is fast in it, and float32 for models of fewer than a million parameters.
    Parameters in half precision always compute in their own dtype.

    Raises:
        ConfigError: float32 is asked for with bfloat16 parameters, whose lost digits it cannot bring back.
    """
    if dtype != torch.float32:
        if wanted == "float32":
            raise ConfigError(
                "compute_dtype float32 with --model.dtype bfloat16: bfloat16 parameters have 8 bits of precision, and "
                "float32 matmuls bring none back. Set --model.dtype float32.",
                code="config/float32-of-bfloat16",
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
