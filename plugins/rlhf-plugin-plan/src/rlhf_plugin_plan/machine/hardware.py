"""Table of GPUs with memory and rates: rates of plain large kernels if measured, else derived from data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_core import ConfigError

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU and its links."""

    name: str
    memory_gib: float
    """Memory that programs can use, in GiB as the driver counts it."""
    bf16_tflops: float
    """Rate of dense bfloat16 matmuls, in 1e12 operations per second."""
    fp32_tflops: float
    """Rate of float32 matmuls without tensor cores, the kind that an engine of a float32 model computes."""
    memory_tb_s: float
    """Bandwidth of the GPU's memory, bytes read plus bytes written, in TB per second."""
    link_gb_s: float
    """Bandwidth to another GPU of the machine, one way, in GB per second."""
    host_gb_s: float
    """Bandwidth to host memory, one way, in GB per second."""
    network_gb_s: float
    """Bandwidth to a GPU of another machine, one way, in GB per second."""
    source: str
    """Origin of the numbers, for the report."""

    @property
    def memory(self) -> float:
        """Memory in bytes."""
        return self.memory_gib * GIB

    def flops(self, dtype: str) -> float:
        """Return the operations per second of matmuls in ``dtype``."""
        return 1e12 * (self.bf16_tflops if dtype == "bfloat16" else self.fp32_tflops)

    @property
    def bandwidth(self) -> float:
        """Bytes per second that the GPU reads and writes in its own memory."""
        return 1e12 * self.memory_tb_s


_STATED = "the maker's data sheet, at the share of its peak that an H200 reaches (80 %, 90 %)"

GPUS: Mapping[str, GpuSpec] = {
    gpu.name: gpu
    for gpu in (
        GpuSpec(
            name="h200",
            memory_gib=139.8,
            bf16_tflops=790.0,
            fp32_tflops=50.0,
            memory_tb_s=4.3,
            link_gb_s=400.0,
            host_gb_s=50.0,
            network_gb_s=45.0,
            source="matmul and memory rates measured on one H200, 2026-11-21; links assumed",
        ),
        GpuSpec(
            name="h100",
            memory_gib=79.1,
            bf16_tflops=790.0,
            fp32_tflops=50.0,
            memory_tb_s=3.0,
            link_gb_s=400.0,
            host_gb_s=50.0,
            network_gb_s=45.0,
            source=_STATED,
        ),
        GpuSpec(
            name="a100-80",
            memory_gib=79.2,
            bf16_tflops=250.0,
            fp32_tflops=15.0,
            memory_tb_s=1.8,
            link_gb_s=240.0,
            host_gb_s=25.0,
            network_gb_s=22.0,
            source=_STATED,
        ),
        GpuSpec(
            name="a100-40",
            memory_gib=39.4,
            bf16_tflops=250.0,
            fp32_tflops=15.0,
            memory_tb_s=1.4,
            link_gb_s=240.0,
            host_gb_s=25.0,
            network_gb_s=22.0,
            source=_STATED,
        ),
        GpuSpec(
            name="l40s",
            memory_gib=44.4,
            bf16_tflops=290.0,
            fp32_tflops=70.0,
            memory_tb_s=0.78,
            link_gb_s=25.0,
            host_gb_s=25.0,
            network_gb_s=11.0,
            source=_STATED + "; no link but PCIe",
        ),
    )
}


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU of this name.

    Raises:
        ConfigError: the table has no GPU of this name.
    """
    if name not in GPUS:
        raise ConfigError(
            f"--gpu {name}: expected one of {', '.join(GPUS)}", code="plan/unknown-gpu"
        )
    return GPUS[name]
