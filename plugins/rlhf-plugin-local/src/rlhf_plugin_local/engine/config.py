"""Options of the embedded engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config


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
        8192, ge=1, description="prompt tokens of one prefill pass; a longer prompt is one pass"
    )
    share_prefixes: bool = Field(
        True, description="compute equal prompts that are admitted together once"
    )
    weights: Literal["shared", "copy"] = Field(
        "shared",
        description="use the trainer's own tensors where it lives in this process, or keep a copy, "
        "which is needed where training goes on while requests are in flight",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where a copy of the weights lives; shared weights stay where they are"
    )
