"""Model adapters, made by PEFT: LoRA, DoRA, and LoRA on a base in 4 bits (QLoRA)."""

from typing import Any

import rlhf_torch  # noqa: F401 -- it silences bitsandbytes, which PEFT imports
from rlhf_core import Component, hookimpl

from . import dora, lora, qlora


@hookimpl
def rlhf_model_adapters() -> list[Component[Any]]:
    return [lora.COMPONENT, dora.COMPONENT, qlora.COMPONENT]
