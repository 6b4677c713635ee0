"""Flags of ``lora_combiner``, which become those of ``rlhf merge``: a command line, not a configuration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...table.outcome import Outcome
from ..common.command_line import FLAGS, read_flags

_WORDS = {"model_path": "BASE", "lora_path": "ADAPTER", "output_path": "OUT"}
"""Required flag -> word of ``rlhf merge``, in the order in which it takes them."""


def migrate(words: Sequence[str]) -> tuple[str, Outcome]:
    """Return the command line of ``rlhf merge`` that the flags mean, and what became of each."""
    source = read_flags(words, FLAGS["lora_combiner"])
    out = Outcome(source, command="merge")
    out.apply_plain_entries()
    for name, word in _WORDS.items():
        if not source.given(name):
            out.warnings.append(f"--{name} is missing: put it in place of {word}")
    line = [source.text(name) or word for name, word in _WORDS.items()]
    return shlex.join(["rlhf", "merge", *line]), out
