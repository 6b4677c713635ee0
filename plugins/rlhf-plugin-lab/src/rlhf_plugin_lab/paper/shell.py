"""Words of a command as a shell reads them, for a page from which they are copied."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_SHORT = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def replay_command(run: Path) -> str:
    """Return the beginning of the command that does steps of a run again; ``--from STEP --to STEP`` follow."""
    path = str(run)
    return f"rlhf replay {quoted(f'./{path}' if path.startswith('-') else path)}"


def quoted(word: str) -> str:
    """Return a word that a POSIX shell reads as it is.

    One with characters that a terminal obeys or does not show, such as line breaks, escapes and turns of direction, is
    written as ``$'...'`` of bash, zsh and ksh, with these as bytes in hexadecimal: what is seen is what is pasted.
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
