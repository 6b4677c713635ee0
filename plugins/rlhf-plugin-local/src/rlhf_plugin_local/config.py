"""Options of the torch backend and of the local runtime."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config
from rlhf_torch.options import ComputeOptions


class TorchBackendConfig(ComputeOptions):
    """Options of training in one process."""


class LocalRuntimeConfig(Config):
    """One process for everything."""

    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of torch, whose number changes results by rounding. Unset: OMP_NUM_THREADS, else 1 "
        "if each model's weight files have at most 4 MiB, else one per available core",
    )
