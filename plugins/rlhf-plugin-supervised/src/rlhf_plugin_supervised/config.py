"""Options of ``distill`` and ``sft``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Config


class DistillConfig(Config):
    divergence: Literal["sampled", "top_k"] = Field(
        "sampled",
        description="sampled: the KL is estimated from the sampled token alone; top_k: it is computed over the "
        "teacher's most probable tokens (algo.teacher.top_k of them) and all others as one",
    )
    direction: Literal["reverse", "forward"] = Field(
        "reverse",
        description="top_k: reverse: KL(policy || teacher), which avoids what the teacher would not say; forward: "
        "KL(teacher || policy), which covers all that it would",
    )

    @model_validator(mode="after")
    def _refuse_a_forward_kl_of_the_policys_samples(self) -> DistillConfig:
        if self.direction == "forward" and self.divergence == "sampled":
            raise ValueError(
                "direction forward is an expectation over the teacher's tokens, and divergence sampled has only the "
                "policy's. Set divergence top_k, or direction reverse."
            )
        return self

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"teacher_top_k" if self.divergence == "top_k" else "teacher_logprobs"})


class SftConfig(Config):
    """Supervised fine-tuning has no options; its data is that of the section ``supervised``."""
