"""The command ``rlhf sft``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.training import TrainingCommand, execute
from rlhf_core import plugins as plugin_loader

from .options import SFT

COMMAND = TrainingCommand(
    options=SFT,
    defaults=Path(__file__).with_name("sft.toml"),
    run="rlhf_plugin_supervised.finetuning.course:run",
    describe="rlhf_plugin_supervised.finetuning.describe:describe",
)


def main(words: Sequence[str]) -> int:
    """Run ``rlhf sft WORDS`` and return the exit code."""
    return execute(COMMAND, words, plugin_loader.load())
