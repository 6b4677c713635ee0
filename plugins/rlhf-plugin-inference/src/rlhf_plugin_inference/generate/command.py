"""The command ``rlhf generate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.training import TrainingCommand, execute
from rlhf_core import plugins as plugin_loader

from .options import GENERATE

_HERE = "rlhf_plugin_inference.generate"
_COMMAND = TrainingCommand(
    options=GENERATE,
    defaults=Path(__file__).with_name("generate.toml"),
    run=f"{_HERE}.run:run",
    describe=f"{_HERE}.describe:describe",
    rows=f"{_HERE}.rows:check_rows",
)


def generate(words: Sequence[str]) -> int:
    """Run ``rlhf generate WORDS`` and return the exit code."""
    return execute(_COMMAND, words, plugin_loader.load())
