"""Options of the FSDP backend."""

from __future__ import annotations

from pydantic import Field

from rlhf_torch.options import ComputeOptions


class FsdpConfig(ComputeOptions):
    """Options of one role's training on ranks that share weights, gradients and the state of training."""

    reshard_after_forward: bool = Field(
        True,
        description="drop a layer's collected weights after its forward pass, which takes less memory; false: keep "
        "them for the backward pass, which saves a third of the communication",
    )
