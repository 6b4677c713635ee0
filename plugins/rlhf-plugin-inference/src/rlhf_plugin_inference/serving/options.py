"""Options of the model and of sampling that commands which generate share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.config.common import ModelPath, NotNegative, Positive
from rlhf_core.contracts import SamplingParams


class ModelToServe(ModelPath):
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="parameters and matmuls; auto: bfloat16 if the model's files are, else float32",
    )
    adapter: str | None = Field(
        None,
        description="PEFT folder of an adapter, which is merged into the weights after loading",
    )


class Sampling(Config):
    temperature: float = Field(
        1.0, ge=0.0, le=10.0, description="sampling temperature; 0 takes the most probable token"
    )
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus sampling; 1 keeps all tokens")
    top_k: NotNegative = Field(0, description="keep this many tokens; 0 keeps all")
    min_p: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="drop tokens below this share of the best one's probability",
    )
    stop: tuple[str, ...] = Field((), description="strings that end an answer")
    min_new_tokens: NotNegative = Field(0, description="tokens of the shortest answer")
    max_new_tokens: Positive = Field(256, description="tokens of the longest answer")

    def params(self) -> SamplingParams:
        """Return the options as an engine takes them."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
            min_new_tokens=self.min_new_tokens,
            max_new_tokens=self.max_new_tokens,
        )
