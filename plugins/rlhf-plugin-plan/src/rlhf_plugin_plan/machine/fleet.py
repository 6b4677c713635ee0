"""GPUs as people write them: ``4xa100-80``, ``8x24GB``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rlhf_core import ConfigError

from .hardware import GPUS, GpuSpec

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
