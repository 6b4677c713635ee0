"""Options of the embedded engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.capabilities import STALE_ROLLOUTS

if TYPE_CHECKING:
    import torch


class EmbeddedEngineConfig(Config):
    """Who decodes together, and from whose weights."""

    slots: int = Field(256, ge=1, le=8192, description="sequences decoded together at most")
    block: int = Field(
        16,
        ge=8,
        le=4096,
        multiple_of=8,
        description="tokens by which the part of the KV cache that is read grows",
    )
    prefill_tokens: int = Field(
        8192,
        ge=1,
        description="prompt tokens that one prefill pass computes, without those of a history that is in the cache; a "
        "longer prompt is one pass",
    )
    share_prefixes: bool = Field(
        True,
        description="compute equal prompts that are admitted together once; where decoding is resident, also compute "
        "of a prompt only what follows a history that is still in the cache",
    )
    decode: Literal["auto", "resident", "stepwise"] = Field(
        "auto",
        description="resident: the state of sequences stays on the device, which samples several tokens between two "
        "looks of the host, on a GPU by captured graphs; stepwise: the host looks at each; auto: resident on GPUs",
    )
    kv_cache_gib: float | None = Field(
        None,
        gt=0,
        description="memory of keys and values when decoding is resident; sequences wait where it does not hold "
        "`slots` of them [default: what they need, at most 0.3 of the GPU's]",
    )
    compile: bool = Field(
        True,
        description="torch.compile the layers that a GPU decodes with, when decoding is resident",
    )
    weights: Literal["shared", "copy"] = Field(
        "shared",
        description="use the trainer's own tensors where it lives in this process, or keep a copy of all of them, as "
        "an engine in another process has it",
    )
    overlap: Literal["auto", "always", "never"] = Field(
        "auto",
        description="with rollout.max_staleness, generate while the trainer of this process computes: in a thread and "
        "a GPU stream of the engine's own, from a copy of the weights as it computes with them, which each update "
        "renews. never: generation waits where it shares weights; auto: where that was measured as faster",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where a copy of the weights lives; shared weights stay where they are"
    )

    def needed_by_options(self) -> frozenset[str]:
        """Return the need of a run that generates ahead, where the engine is to do so beside training."""
        return frozenset({STALE_ROLLOUTS}) if self.overlap == "always" else frozenset()

    def is_resident(self, device: torch.device) -> bool:
        """Return whether sequences stay on ``device`` between tokens."""
        return self.decode == "resident" or (self.decode == "auto" and device.type == "cuda")
