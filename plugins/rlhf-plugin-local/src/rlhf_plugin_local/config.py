"""Options of the torch backend and of the local runtime."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.capabilities import BFLOAT16_WEIGHTS


class TorchBackendConfig(Config):
    """Options of training in one process."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: the GPU if there is one"
    )
    compute_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="of the matmuls. auto: bfloat16 where the hardware is fast at it and the model has a million "
        "parameters or more, else float32; bfloat16 parameters always compute in bfloat16",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="recompute each layer in the backward pass: less memory, a third more time",
    )
    compile: bool = Field(
        False, description="torch.compile each layer; the plan does for 50 steps or more"
    )
    share_prompts: bool = Field(
        True,
        description="compute what sequences of a group begin with (a prompt, turns before a fork) once in a "
        "micro-batch; results differ by rounding only",
    )
    logits_chunk: int | None = Field(
        None,
        ge=1,
        description="action tokens whose logits are in memory at once; unset: 4096 on a GPU, on a CPU as many as its "
        "caches hold; with as many as a micro-batch has, they are computed once, not twice",
    )

    def excluded_by_options(self) -> frozenset[str]:
        return frozenset({BFLOAT16_WEIGHTS} if self.compute_dtype == "float32" else ())


class LocalRuntimeConfig(Config):
    """One process for everything."""

    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of torch; unset: OMP_NUM_THREADS, else 1 if each model's weight files have 4 MiB at "
        "most, else one per available core. Results are equal to the bit for an equal number of threads only",
    )
