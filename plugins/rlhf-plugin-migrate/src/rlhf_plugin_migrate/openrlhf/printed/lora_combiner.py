"""Flags of ``lora_combiner``, which become those of ``rlhf merge``: a command line, not a configuration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...table.entries import Nothing, OptionEntry, To
from ...table.kinds import SWITCH, TEXT, choice
from ...table.outcome import Outcome
from ..common.command_line import read_flags

_WORDS = {"model_path": "BASE", "lora_path": "ADAPTER", "output_path": "OUT"}
"""Required flag -> word of ``rlhf merge``, in the order in which it takes them."""

_ENTRIES = (
    *(OptionEntry(name, TEXT, None, To(word)) for name, word in _WORDS.items()),
    OptionEntry("is_rm", SWITCH, False, Nothing("the files of base and adapter say that it is a classifier")),
    OptionEntry(
        "ds.param_dtype", choice("bf16", "fp16"), "bf16",
        Nothing("the result has the base's type, computed in float32 and rounded once"), ("param_dtype",),
    ),
)  # fmt: skip

FLAGS = {entry.name: entry for entry in _ENTRIES}
"""The table, by the names of 0.11.2."""


def migrate(words: Sequence[str]) -> tuple[str, Outcome]:
    """Return the command line of ``rlhf merge`` that the flags mean, and what became of each."""
    source = read_flags(words, FLAGS)
    out = Outcome(source, command="merge")
    out.apply_plain_entries()
    for name, word in _WORDS.items():
        if not source.given(name):
            out.warnings.append(f"--{name} is missing: put it in place of {word}")
    line = [source.text(name) or word for name, word in _WORDS.items()]
    return shlex.join(["rlhf", "merge", *line]), out
