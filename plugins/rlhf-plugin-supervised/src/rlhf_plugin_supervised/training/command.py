"""The commands that train on examples, each as its options and the modules that run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.training import TrainingCommand, execute
from rlhf_core import plugins as plugin_loader
from rlhf_core.config import OptionTree

from .imitation.distill_options import DISTILL
from .imitation.sft_options import SFT
from .preferences.dpo_options import DPO
from .reward_models.prm_options import PRM
from .reward_models.rm_options import RM

_HERE = "rlhf_plugin_supervised.training"


def _command(options: OptionTree[Any], room: str) -> TrainingCommand[Any]:
    return TrainingCommand(
        options=options,
        defaults=Path(__file__).with_name(f"{options.command}.toml"),
        run=f"{_HERE}.{room}.{options.command}:run",
        describe=f"{_HERE}.describe:describe",
    )


COMMANDS: Mapping[str, TrainingCommand[Any]] = {
    options.command: _command(options, room)
    for options, room in (
        (SFT, "imitation"),
        (DPO, "preferences"),
        (RM, "reward_models"),
        (PRM, "reward_models"),
        (DISTILL, "imitation"),
    )
}
"""The commands by name."""


def sft(words: Sequence[str]) -> int:
    """Run ``rlhf sft WORDS`` and return the exit code."""
    return execute(COMMANDS["sft"], words, plugin_loader.load())


def dpo(words: Sequence[str]) -> int:
    """Run ``rlhf dpo WORDS`` and return the exit code."""
    return execute(COMMANDS["dpo"], words, plugin_loader.load())


def rm(words: Sequence[str]) -> int:
    """Run ``rlhf rm WORDS`` and return the exit code."""
    return execute(COMMANDS["rm"], words, plugin_loader.load())


def prm(words: Sequence[str]) -> int:
    """Run ``rlhf prm WORDS`` and return the exit code."""
    return execute(COMMANDS["prm"], words, plugin_loader.load())


def distill(words: Sequence[str]) -> int:
    """Run ``rlhf distill WORDS`` and return the exit code."""
    return execute(COMMANDS["distill"], words, plugin_loader.load())
