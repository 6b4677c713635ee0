"""Adapters of TRL in ``peer_trl_step.py`` and ``peer_trl_sft.py``: on all linear layers, with alpha twice the rank."""

from __future__ import annotations

import argparse
from typing import Any


def loading(arguments: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained``: the dtype, and under ``qlora`` a base in 4 bits."""
    kwargs: dict[str, Any] = {"dtype": dtype}
    if arguments.adapter == "qlora":
        from transformers import BitsAndBytesConfig

        kwargs["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    return kwargs


def adapter(arguments: argparse.Namespace) -> Any:
    """Return PEFT's configuration, None if all weights are trained."""
    if arguments.adapter is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=arguments.rank,
        lora_alpha=2 * arguments.rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
