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
        description="number type of matrix products; auto: bfloat16 if the hardware is fast at it and the model has at "
        "least a million parameters, else float32. bfloat16 parameters always compute in bfloat16",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="recompute each layer in the backward pass, which takes less memory and a third more time",
    )
    compile: bool = Field(
        False,
        description="use torch.compile for each layer; rlhf plan turns it on for runs of 50 steps or more",
    )
    deterministic: bool = Field(
        False,
        description="take the deterministic kernels of a GPU for gradients, so that a run repeats there to the bit; "
        "slower. An operation that has none ends the run. On a CPU all kernels are deterministic",
    )
    share_prompts: bool = Field(
        True,
        description="compute what sequences of a group begin with (a prompt, turns before a fork) once in each "
        "micro-batch of a rank; results differ by rounding only",
    )
    logits_chunk: int | None = Field(
        None,
        ge=1,
        description="number of action tokens whose logits are in memory at once; logits are computed twice unless it "
        "covers a micro-batch; unset: 4096 on a GPU, on a CPU what caches hold",
    )

    def excluded_by_options(self) -> frozenset[str]:
        return frozenset({BFLOAT16_WEIGHTS} if self.compute_dtype == "float32" else ())
