"""State that the ranks of a role share, as the backends' options say it."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine import assumptions as assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """State that the ranks of a role share, as DeepSpeed's options; stage 0 with one rank for the torch backend."""

    stage: int = 0
    """ZeRO stage, 0 to 3."""
    ranks: int = 1
    """Number N of ranks among which ZeRO shares; ranks that share every matrix count as one."""
    offload_optimizer: bool = False
    """Whether float32 weights and optimizer state are in host memory."""
    offload_parameters: bool = False
    """Whether the shared weights of stage 3 are in host memory."""
    reduce_bucket: int = 0
    """Number of float32 elements of one bucket of gradients."""
    overlap: bool = False
    """Whether gradients are summed during the backward pass, which takes a second bucket."""
    in_passing: bool = False
    """Whether gradients travel in their own type while the backward pass goes on, and the sum goes to the ranks that
    update it at the end: stage 2, with whole matrices and with state on the GPU."""
    live_parameters: int = assumed.LIVE_PARAMETERS
    """Largest number of parameters that stage 3 keeps collected."""
    layerwise: bool = False
    """Whether each layer's weights are collected when it is computed, and its gradients summed beside the next layer's
    backward pass; trained weights are then float32 alone, without a rounded copy: the ``fsdp`` backend at stage 3."""
    collections: int = 2
    """Number of times that a micro-batch of training collects a layer's weights at stage 3."""

    def part(self, stage: int) -> float:
        """Return the part of a state that one rank has, if ranks share the state from ``stage`` on: 1 / N or 1."""
        return 1.0 / self.ranks if self.stage >= stage else 1.0
