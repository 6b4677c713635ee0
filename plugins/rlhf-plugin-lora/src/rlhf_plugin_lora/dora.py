"""DoRA: LoRA that trains the length of each row of a weight apart from its direction.

The weight becomes m * (W + s B A) / ||W + s B A||, with one trained number m for each output and the norm over the
inputs. m starts as ||W||, so the first policy is the base. The norm is taken as a constant in the backward pass, as
section 4.3 of the paper does. Source: Liu et al. 2024, arXiv:2402.09353.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlhf_core import Component

from .options import LowRankOptions

if TYPE_CHECKING:
    from .adapter import PeftAdapter


class DoraOptions(LowRankOptions):
    """DoRA. No engine computes it beside the base, so engines get merged weights."""

    has_magnitudes: ClassVar[bool] = True


def build(options: DoraOptions) -> PeftAdapter:
    from .adapter import PeftAdapter

    return PeftAdapter(options)


COMPONENT = Component(
    name="dora",
    factory=build,
    config=DoraOptions,
    summary="LoRA with trained lengths of the weights' rows; engines get merged weights",
)
