"""QLoRA: LoRA on a base whose linear layers are held in 4 bits (NormalFloat, with quantized scales).

An engine samples from this policy if it shares the trainer's model, or unpacks the same 4 bits as it loads the base.
One that takes the base as it is in its files would sample from another policy. Source: Dettmers et al. 2023,
arXiv:2305.14314. Like the paper, it adapts all linear layers by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rlhf_core import Component
from rlhf_core.capabilities import FOUR_BIT_BASE, SERVES_ADAPTERS, SERVES_FOUR_BITS

from .options import StackedOptions

if TYPE_CHECKING:
    from .adapter import PeftAdapter


class QloraOptions(StackedOptions):
    """LoRA on a base in 4 bits."""

    double_quantization: bool = Field(
        True,
        description="quantize the scales of the 4-bit base too, which saves 0.4 bits per weight",
    )


def build(options: QloraOptions) -> PeftAdapter:
    from .adapter import PeftAdapter

    return PeftAdapter(
        options, load_options=lambda: in_four_bits(options), served_rank=options.served_rank()
    )


def in_four_bits(options: QloraOptions) -> Mapping[str, Any]:
    """Return the arguments of ``from_pretrained`` that quantize linear layers as they are loaded.

    The dtype of the matmuls is not among them: each layer computes in the dtype of its inputs, which is the run's.
    """
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=options.double_quantization,
    )
    return {"quantization_config": config}


COMPONENT = Component(
    name="qlora",
    factory=build,
    config=QloraOptions,
    summary="LoRA on a base in 4 bits, whose engine shares the trainer's model or unpacks the base",
    needs=frozenset({SERVES_ADAPTERS, SERVES_FOUR_BITS}),
    provides=frozenset({FOUR_BIT_BASE}),
    extra="qlora",
)
