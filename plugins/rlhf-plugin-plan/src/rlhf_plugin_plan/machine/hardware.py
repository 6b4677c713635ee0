"""Table of GPUs with memory and rates: rates of plain large kernels if measured, else derived from data sheets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

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


GPUS: Mapping[str, GpuSpec] = {
    name: GpuSpec(name=name, **numbers)
    for name, numbers in tomllib.loads(
        Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8")
    ).items()
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


USABLE = 0.985
"""Share of a card's nominal memory that programs can use: 78.8 GiB of 80 GB, as drivers count them."""
STAND_IN = "l40s"
"""GPU whose rates stand for those of a card of which only the memory is known: a card without links."""
_COUNTED = re.compile(r"(?:(\d+)x)?(.+)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)gi?b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """GPUs of one machine, all alike."""

    gpu: GpuSpec
    count: int
    """At least 1."""


def find_fleet(text: str) -> Fleet:
    """Return the GPUs that ``text`` names: a number, ``x``, and a GPU of the table or a memory.

    Raises:
        ConfigError: it names none.
    """
    counted = _COUNTED.fullmatch(text)
    count, name = (counted.group(1) or "1", counted.group(2)) if counted else ("0", "")
    memory = _MEMORY.fullmatch(name)
    if int(count) < 1 or (name not in GPUS and memory is None):
        raise ConfigError(
            f"--gpus {text[:200]}: expected a number and a GPU, such as 4xa100-80, or a memory, such as 8x24GB. GPUs: "
            f"{', '.join(GPUS)}",
            code="plan/malformed-fleet",
        )
    if memory is None:
        return Fleet(gpu=GPUS[name], count=int(count))
    gpu = replace(
        GPUS[STAND_IN],
        name=name,
        memory_gib=USABLE * float(memory.group(1)),
        source=f"memory as given; rates of an {STAND_IN} assumed",
    )
    return Fleet(gpu=gpu, count=int(count))
