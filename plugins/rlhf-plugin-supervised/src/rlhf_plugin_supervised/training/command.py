"""The commands that train on examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.training import TrainingCommand, execute
from rlhf_core import plugins as plugin_loader

from .dpo_options import DPO
from .prm_options import PRM
from .rm_options import RM
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


_RM = TrainingCommand(
    options=RM,
    defaults=Path(__file__).with_name("rm.toml"),
    run=f"{_HERE}.rm:run",
    describe=f"{_HERE}.describe:describe",
)
_PRM = TrainingCommand(
    options=PRM,
    defaults=Path(__file__).with_name("prm.toml"),
    run=f"{_HERE}.prm:run",
    describe=f"{_HERE}.describe:describe",
)


def sft(words: Sequence[str]) -> int:
    """Run ``rlhf sft WORDS`` and return the exit code."""
    return execute(_SFT, words, plugin_loader.load())


def dpo(words: Sequence[str]) -> int:
    """Run ``rlhf dpo WORDS`` and return the exit code."""
    return execute(_DPO, words, plugin_loader.load())


def rm(words: Sequence[str]) -> int:
    """Run ``rlhf rm WORDS`` and return the exit code."""
    return execute(_RM, words, plugin_loader.load())


def prm(words: Sequence[str]) -> int:
    """Run ``rlhf prm WORDS`` and return the exit code."""
    return execute(_PRM, words, plugin_loader.load())
