"""A check that the weights of all processes on a GPU fit into its memory, from model files and machines' reports.

The computed need is a lower bound, since gradients, optimizer states, activations and the KV cache come on top of the
weights. ``rlhf plan`` predicts these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_core import ConfigError
from rlhf_core.contracts import ENGINE, Colocation, ProcessLayout, RuntimeSpec
from rlhf_core.outside.json_reader import parse_object

from .node_report import GpuReport, weight_bytes

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one weight, by dtype."""
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeed:
    """Lower bound of the weights that the processes on one GPU hold there."""

    by_name: Mapping[str, int]
    """Bytes of all processes of one name on the GPU, by role name or ``ENGINE``."""

    @property
    def total(self) -> int:
        """Bytes of all processes on the GPU."""
        return sum(self.by_name.values())

    def describe(self) -> str:
        """Return the sum in words, such as ``policy 1.0 GiB + engine 1.0 GiB``."""
        return " + ".join(f"{name} {size / GIB:.1f} GiB" for name, size in self.by_name.items())


def gpu_needs(layout: ProcessLayout, spec: RuntimeSpec, folder: Path) -> dict[Colocation, GpuNeed]:
    """Return the need of one GPU for each colocation that uses GPUs. A model that is no local folder counts 0 bytes.

    Args:
        folder: folder that relative model paths start from.
    """
    return {part: _need(part, layout, spec, folder) for part in layout.colocations if part.gpus}


def require_gpus_fit(
    needs: Mapping[Colocation, GpuNeed], gpus: Mapping[str, Sequence[GpuReport]]
) -> None:
    """Refuse an engine whose weights no GPU of the cluster could hold.

    A role is not refused, since a training backend may keep its weights outside of the GPU.

    Args:
        gpus: GPUs of each machine, by the machine's address.

    Raises:
        ConfigError: names the engine's bytes, the largest GPU, and the options.
    """
    sizes = [gpu.total_bytes for found in gpus.values() for gpu in found]
    for need in needs.values():
        if sizes and need.by_name.get(ENGINE, 0) > max(sizes):
            raise ConfigError(
                f"the weights of the engine alone take {need.by_name[ENGINE] / GIB:.1f} GiB of each of its GPUs; the "
                f"largest GPU of the cluster has {max(sizes) / GIB:.1f} GiB. Place engines apart with "
                "runtime.ray.colocate, give each more runtime.ray.gpus_per.engine and let it split the model, or "
                "choose a smaller model",
                code="gpu/memory-too-small",
            )


def gpu_warnings(
    needs: Mapping[Colocation, GpuNeed], address: str, gpus: Sequence[GpuReport]
) -> list[str]:
    """Return a warning for each need that is larger than the free memory of some GPU of one machine."""
    if not gpus:
        return []
    tightest = min(gpus, key=lambda gpu: gpu.free_bytes)
    return [
        f"the weights of {need.describe()} take {need.total / GIB:.1f} GiB of one GPU, and one of {address} has "
        f"{tightest.free_bytes / GIB:.1f} of {tightest.total_bytes / GIB:.1f} GiB left. End what holds the rest "
        "(nvidia-smi), or place them apart with runtime.ray.colocate; rlhf plan predicts the whole"
        for need in needs.values()
        if need.total > tightest.free_bytes
    ]


def _need(part: Colocation, layout: ProcessLayout, spec: RuntimeSpec, folder: Path) -> GpuNeed:
    sets_per_gpu = max(1, int(1 / part.gpus))
    by_name = {}
    for name in part.names:
        if name == ENGINE:
            assert spec.engine_spec is not None
            path, dtype = spec.engine_spec.model_path, spec.engine_spec.dtype
            shares = max(1.0, part.gpus)
        else:
            path, dtype = spec.roles[name].model_path, spec.roles[name].dtype
            # A lower bound: a backend may split the weights over all ranks.
            shares = layout.counts[name]
        there = min(sets_per_gpu, layout.counts[name])
        by_name[name] = int(there * _bytes_in_memory(folder / path, dtype) / shares)
    return GpuNeed(by_name=by_name)


def _bytes_in_memory(model: Path, dtype: str) -> int:
    """Return the bytes of a model's weights in ``dtype``; 0 if ``model`` is not a folder."""
    try:
        config = parse_object((model / "config.json").read_bytes())
    except (OSError, ValueError):
        return weight_bytes(model)
    saved = config.get("dtype") or config.get("torch_dtype") or dtype
    return weight_bytes(model) * BYTES.get(dtype, 2) // BYTES.get(saved, BYTES.get(dtype, 2))
