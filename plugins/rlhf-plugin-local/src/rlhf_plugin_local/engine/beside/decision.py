"""The decision whether the engine generates beside training, with weights and a thread of its own."""

from __future__ import annotations

import torch
from torch import nn

from rlhf_core import ConfigError
from rlhf_core.contracts import EngineSpec

from ..config import EmbeddedEngineConfig

LARGEST_THAT_GAINS = 0.0
"""Parameters up to which, on one GPU, steps with overlap were measured as shorter (docs/performance.md, "Beside
training"), and up to which ``auto`` therefore overlaps. 0: the one size that was measured, 1.5 billion on an H200,
gains nothing, since kernels of 256 rows leave no part of the GPU idle."""


def is_beside_training(
    config: EmbeddedEngineConfig, spec: EngineSpec, module: nn.Module | None, device: torch.device
) -> bool:
    """Return whether the engine generates while ``module`` is trained in the same process.

    Raises:
        ConfigError: ``engine.embedded.overlap`` is ``always`` in a run in which that cannot be.
    """
    if config.overlap == "never":
        return False
    obstacle = _obstacle(spec, module, device)
    if config.overlap == "always":
        if obstacle is not None:
            raise ConfigError(
                f"--engine.embedded.overlap always: {obstacle}", code="engine/no-overlap"
            )
        return True
    return obstacle is None and _gains(config, module, device)


def _gains(config: EmbeddedEngineConfig, module: nn.Module | None, device: torch.device) -> bool:
    if module is None or device.type != "cuda" or not config.is_resident(device):
        return False
    return sum(parameter.numel() for parameter in module.parameters()) <= LARGEST_THAT_GAINS


def _obstacle(spec: EngineSpec, module: nn.Module | None, device: torch.device) -> str | None:
    """Return why an engine cannot generate beside training, and the way out; None: it can."""
    if not spec.overlaps:
        return (
            "nothing is trained while this run generates, so it would only cost memory. Set --rollout.max_staleness "
            "1, or leave the option out"
        )
    if spec.quantization is not None:
        return (
            "a base in 4 bits is served with the trainer's own tensors alone. Choose an adapter whose base is not "
            "quantized, or leave the option out"
        )
    if device.type == "cuda" and module is not None and _drops_out(module):
        return (
            "the adapter's dropout draws random numbers, which fails while the engine captures a CUDA graph. Set "
            "--actor.lora.dropout 0, or leave the option out"
        )
    return None


def _drops_out(module: nn.Module) -> bool:
    return any(
        "lora_dropout" in name and isinstance(layer, nn.Dropout) and layer.p > 0
        for name, layer in module.named_modules()
    )
