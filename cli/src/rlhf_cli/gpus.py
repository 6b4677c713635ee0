"""The flag ``--gpus`` of commands that train: what it stands for; and the GPUs that a run leaves idle.

Imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_config import Layer, ResolvedOptions, leaves, read_toml, visible_accelerators
from rlhf_core import ConfigError
from rlhf_core.contracts import Accelerator, PlansPlacement

SEVERAL = Path(__file__).with_name("several_gpus.toml")
ALL = "all"
UNLIKE = 0.05
"""Share of the memory by which GPUs of one run may differ: every rank is given as much to hold."""


def gpu_layers(asked: str | None, accelerators: Sequence[Accelerator] | None = None) -> list[Layer]:
    """Return the layers of options that ``--gpus N`` or ``--gpus all`` stands for, which files and flags override.

    Args:
        asked: the flag's value; None: it was not given.
        accelerators: the GPUs that there are; None: those of this machine.

    Raises:
        ConfigError: it is no number, this machine has fewer GPUs, or their memory differs.
    """
    if asked is None:
        return []
    visible = visible_accelerators() if accelerators is None else tuple(accelerators)
    count = _count(asked, visible)
    if len(visible) < count:
        has = f"{len(visible)} visible" if visible else "none"
        fix = f"Set --gpus {len(visible)}" if visible else "Leave --gpus out"
        raise ConfigError(
            f"--gpus {asked}: expected GPUs of this machine, which has {has}. {fix}, or name the runtime of a cluster "
            "and its ranks instead (docs/ray.md).",
            code="gpu/too-few",
        )
    _require_alike(visible[:count])
    if count == 1:
        return []
    several = dict(leaves(read_toml(SEVERAL, defaults=True).values))
    values = {path: count if value == 0 else value for path, value in several.items()}
    return [Layer.of_paths(values, f"--gpus {asked}")]


def gpus_elsewhere(asked: str | None) -> tuple[Accelerator, ...] | None:
    """Return GPUs for a check of ``--gpus N`` on a machine that has fewer, which a line on stderr says; None: it has
    them, or none are asked for.

    Raises:
        ConfigError: as from ``gpu_layers``.
    """
    visible = visible_accelerators()
    if asked in (None, ALL) or (count := _count(str(asked), visible)) <= len(visible):
        return None
    print(
        f"not ready to run here: --gpus {asked}: this machine has {len(visible) or 'none'}. The rest is checked as for "
        f"{asked} GPUs of unknown memory.",
        file=sys.stderr,
    )
    return (Accelerator(name="GPU of another machine"),) * count


def idle_gpus(resolved: ResolvedOptions[Any]) -> str | None:
    """Return one line on the GPUs of this machine that the run leaves idle; None: it leaves none, its runtime
    may use other machines, or the command has none."""
    runtime = resolved.optional("runtime.name")
    if runtime is None or isinstance(runtime.options, PlansPlacement):
        return None
    visible = len(visible_accelerators())
    if visible < 2:
        return None
    return f"--runtime {runtime.name} trains on one of {visible} visible GPUs; --gpus all trains on all of them."


def _count(asked: str, visible: Sequence[Accelerator]) -> int:
    if asked == ALL:
        return max(1, len(visible))
    if not asked.isdecimal() or int(asked) < 1:
        raise ConfigError(
            f"--gpus {asked[:200]}: expected a positive number or {ALL}, such as --gpus 4",
            code="usage/number-of-gpus",
        )
    return int(asked)


def _require_alike(gpus: Sequence[Accelerator]) -> None:
    sizes = [gpu.memory_gib for gpu in gpus if gpu.memory_gib is not None]
    if sizes and min(sizes) < (1 - UNLIKE) * max(sizes):
        listed = ", ".join(f"{gpu.name} {gpu.memory_gib or 0:.0f} GiB" for gpu in gpus[:8])
        raise ConfigError(
            f"--gpus {len(gpus)}: expected GPUs of equal memory, since every rank holds as much; got {listed}. Name "
            "equal ones with CUDA_VISIBLE_DEVICES.",
            code="gpu/unequal-memory",
        )
