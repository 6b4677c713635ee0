"""Options of tiny language models of many families, and the models with random weights as ordinary folders.

The sizes suit CPUs; ``write_tiny_text_model`` makes all widths larger for kernels that need wide heads.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tiny import tiny_tokenizer

_TABLE: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("tiny_text_families.toml").read_text(encoding="utf-8")
)
COMMON: Mapping[str, Any] = _TABLE["common"]


def _with_parts(own: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in own.get("parts", ()):
        found |= _TABLE["parts"][part]
    return found | {name: value for name, value in own.items() if name != "parts"}


TEXT_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    family: _with_parts(own) for family, own in _TABLE["families"].items()
}
"""Model type -> its options beside ``COMMON``."""

WIDTHS = re.compile(
    r"(hidden_size|intermediate_size|head_dim|_rank|(proj|ffn|conv|block)_dim|hidden_size_per_layer_input)$"
)
"""Names of the options that are numbers of columns."""


def write_tiny_text_model(folder: Path, family: str, *, width: int = 1, seed: int = 0) -> Path:
    """Write a random model of ``family``, one of ``TEXT_FAMILIES``, and the tiny tokenizer into ``folder``, and return
    the folder.

    Args:
        width: factor of the options' widths, so also of the size of a head.
        seed: seed of the weights; the global random state stays as it is.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {**COMMON, **TEXT_FAMILIES[family]}
    config = AutoConfig.for_model(
        family, **{name: _scaled(name, options[name], width) for name in options}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tiny_tokenizer(family=family).save_pretrained(folder)
    return folder


def _scaled(name: str, value: Any, width: int) -> Any:
    """Return an option's value for a wider model; random weights get smaller, so that sums keep their size."""
    if name in ("initializer_range", "init_std"):
        return value / width**0.5
    if not WIDTHS.search(name):
        return value
    return [width * each for each in value] if isinstance(value, list) else width * value
