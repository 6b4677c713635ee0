"""Options of the model that commands which generate share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core.config.common import ModelPath


class ModelToServe(ModelPath):
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="parameters and matmuls; auto: bfloat16 if the model's files are, else float32",
    )
    adapter: str | None = Field(
        None,
        description="PEFT folder of an adapter, which is merged into the weights after loading",
    )
