"""Options that an error names as flags, in Python's words: a note on the error of whoever calls a function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_core import RLHFError

_FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*(?:\.[\w-]+)*)")
_MEANT = re.compile(r"^keyword .*Did you mean ([a-z][\w.]*\.\w+)\?", re.MULTILINE)
"""A keyword's message that names one option, which has a section and is therefore no word of Python's."""
_NO_OPTIONS = frozenset({"help", "check", "dry-run", "gpus", "errors"})
"""Flags of the command line that no function has."""


@contextmanager
def in_python_words() -> Iterator[None]:
    """Add a note to an error that names flags: ``In Python: steps=..., **{"algo.kl.coef": ...}``."""
    try:
        yield
    except RLHFError as error:
        noted = any(note.startswith("In Python: ") for note in getattr(error, "__notes__", ()))
        if not noted and (words := python_words(str(error))):
            error.add_note(f"In Python: {words}")
        raise


def python_words(message: str) -> str:
    """Return the keywords that are a message's flags, each once and in their order; empty: it names none."""
    names = dict.fromkeys([*_FLAG.findall(message), *_MEANT.findall(message)])
    words = [f"{name}=..." for name in names if "." not in name and name not in _NO_OPTIONS]
    paths = ", ".join(f'"{name}": ...' for name in names if "." in name)
    return ", ".join([*words, *([f"**{{{paths}}}"] if paths else [])])
