"""The commands ``rlhf sft`` and ``rlhf dpo``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.training import TrainingCommand, execute
from rlhf_core import plugins as plugin_loader

from .dpo_options import DPO
from .sft_options import SFT

_HERE = "rlhf_plugin_supervised.training"
_SFT = TrainingCommand(
    options=SFT,
    defaults=Path(__file__).with_name("sft.toml"),
    run=f"{_HERE}.sft:run",
    describe=f"{_HERE}.describe:describe",
)
_DPO = TrainingCommand(
    options=DPO,
    defaults=Path(__file__).with_name("dpo.toml"),
    run=f"{_HERE}.dpo:run",
    describe=f"{_HERE}.describe:describe",
)


def sft(words: Sequence[str]) -> int:
    """Run ``rlhf sft WORDS`` and return the exit code."""
    return execute(_SFT, words, plugin_loader.load())


def dpo(words: Sequence[str]) -> int:
    """Run ``rlhf dpo WORDS`` and return the exit code."""
    return execute(_DPO, words, plugin_loader.load())
