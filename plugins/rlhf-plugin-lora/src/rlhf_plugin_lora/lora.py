"""LoRA: each adapted weight W becomes W + (alpha / rank) * B A, of which A and B are trained.

B starts as zeros, so the first policy is the base. Source: Hu et al. 2021, arXiv:2106.09685. By default all linear
layers are adapted, as https://thinkingmachines.ai/blog/lora/ (2025) finds best; the paper adapts the attention alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from rlhf_core import Component
from rlhf_core.capabilities import SERVES_ADAPTERS

from .options import StackedOptions

if TYPE_CHECKING:
    from .adapter import PeftAdapter


class LoraOptions(StackedOptions):
    """LoRA, and the way in which engines get it."""

    serve: Literal["adapter", "merged"] = Field(
        "adapter",
        description="what engines get at each update: adapter: the factors, beside the base's weights; merged: all "
        "weights, with the factors merged into them",
    )

    init: Literal["random", "pissa"] = Field(
        "random",
        description="start of the factors. random: A random, B zero; pissa: the largest singular values and vectors "
        "of each weight, which doubles the rank in engines and the export",
    )

    @model_validator(mode="after")
    def _begins_once(self) -> Self:
        if self.init != "random" and self.init_from is not None:
            raise ValueError(
                f"init {self.init} and init_from: expected one of them; an adapter that goes on has begun"
            )
        return self

    @model_validator(mode="after")
    def _stacks_begin_at_random(self) -> Self:
        if self.init != "random" and self.target_parameters:
            raise ValueError(
                f"init {self.init} and target_parameters {' '.join(self.target_parameters)}: expected one of them; "
                "factors of stacks begin at random"
            )
        return self

    def served_rank(self) -> int:
        """Return the largest rank of the factors that engines get."""
        return super().served_rank() * (2 if self.init == "pissa" else 1)

    def needed_by_options(self) -> frozenset[str]:
        """An engine that takes factors, if factors are what it gets."""
        served = frozenset({SERVES_ADAPTERS} if self.serve == "adapter" else ())
        return served | super().needed_by_options()


def build(options: LoraOptions) -> PeftAdapter:
    from .adapter import PeftAdapter

    rank = options.served_rank() if options.serve == "adapter" else None
    return PeftAdapter(options, served_rank=rank, is_principal=options.init == "pissa")


COMPONENT = Component(
    name="lora",
    factory=build,
    config=LoraOptions,
    summary="low-rank factors beside each linear layer; the base stays as it is",
)
