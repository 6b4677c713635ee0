"""Options that training backends on torch share, whatever they do with ranks. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.capabilities import BFLOAT16_WEIGHTS


class ComputeOptions(Config):
    """Options of how one role's passes are computed. A backend's own options are those of a class below this one."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the role. auto: the GPU of this process if there is one"
    )
    compute_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="type of the matmuls. auto: bfloat16 on hardware with fast bfloat16 if the model has a million "
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
        "micro-batch of a rank; results differ by rounding only",
    )
    logits_chunk: int | None = Field(
        None,
        ge=1,
        description="number of action tokens whose logits are in memory at once; unset: 4096 on a GPU, on a CPU as "
        "many as its caches hold; with as many as a micro-batch has, they are computed once, not twice",
    )

    def excluded_by_options(self) -> frozenset[str]:
        return frozenset({BFLOAT16_WEIGHTS} if self.compute_dtype == "float32" else ())
