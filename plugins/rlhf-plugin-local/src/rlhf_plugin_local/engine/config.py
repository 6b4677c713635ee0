"""Options of the embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.capabilities import (
    SERVES_ADAPTERS,
    SERVES_FOUR_BITS,
    SHARES_WEIGHTS,
    STALE_ROLLOUTS,
)

if TYPE_CHECKING:
    import torch


class EmbeddedEngineConfig(Config):
    """Who decodes together, and from whose weights."""

    slots: int = Field(
        256, ge=1, le=8192, description="largest number of sequences that are decoded together"
    )
    block: int = Field(
        16,
        ge=8,
        le=4096,
        multiple_of=8,
        description="number of tokens by which the part of the KV cache that is read grows, a multiple of 8",
    )
    prefill_tokens: int = Field(
        8192,
        ge=1,
        description="largest number of prompt tokens in one prefill pass, not counting a history in the cache; a "
        "longer prompt is a pass of its own",
    )
    share_prefixes: bool = Field(
        True,
        description="compute equal prompts that start together once; with resident decoding also compute only the "
        "part of a prompt behind a history that is still in the cache",
    )
    decode: Literal["auto", "resident", "stepwise"] = Field(
        "auto",
        description="resident: the device samples several tokens before the host looks at them, on a GPU by captured "
        "graphs; stepwise: the host looks at each token; auto: resident on GPUs",
    )
    kv_cache_gib: float | None = Field(
        None,
        gt=0,
        description="GiB of keys and values with resident decoding, also of histories that wait for a later turn; if "
        "they do not suffice, histories give way and then sequences wait; unset: what `slots` need, and with several "
        "turns all conversations in flight, at most 0.3 of the GPU",
    )
    compile: bool = Field(
        True,
        description="use torch.compile for the layers that a GPU decodes with in resident decoding",
    )
    weights: Literal["shared", "copy"] = Field(
        "shared",
        description="shared: use the trainer's own tensors if it is in this process; copy: keep a copy of all of "
        "them, as an engine in another process does",
    )
    overlap: Literal["auto", "always", "never"] = Field(
        "auto",
        description="with rollout.max_staleness, generate beside the trainer of this process, from a copy of the "
        "weights that each update renews. never: generation waits if it shares weights; auto: where that was "
        "measured as faster",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of a copy of the weights; shared weights stay where they are"
    )

    def needed_by_options(self) -> frozenset[str]:
        """Return the need of a run that generates ahead, where the engine is to do so beside training."""
        return frozenset({STALE_ROLLOUTS}) if self.overlap == "always" else frozenset()

    def excluded_by_options(self) -> frozenset[str]:
        """Return what only the trainer's own model can serve, where this engine keeps a copy, and a base in 4 bits
        where it is to generate from a copy beside training."""
        if self.weights == "copy":
            return frozenset({SERVES_ADAPTERS, SERVES_FOUR_BITS, SHARES_WEIGHTS})
        return frozenset({SERVES_FOUR_BITS} if self.overlap == "always" else ())

    def without_effect(self) -> Mapping[str, str]:
        """The options of the other way to decode."""
        if self.decode == "resident":
            return {"block": "decode is resident. Set decode stepwise."}
        if self.decode == "stepwise":
            names = ("kv_cache_gib", "compile")
            return dict.fromkeys(names, "decode is stepwise. Set decode resident.")
        return {}

    def is_resident(self, device: torch.device) -> bool:
        """Return whether sequences stay on ``device`` between tokens."""
        return self.decode == "resident" or (self.decode == "auto" and device.type == "cuda")
