"""Files that a command may write over: those of the kind that it writes, told by their first bytes."""

from __future__ import annotations

from pathlib import Path


def why_not_replaceable(path: Path, start: bytes, kind: str) -> str | None:
    """Return why a file must not be written, with a way out; None: it may be.

    Args:
        start: first bytes of all files of the kind.
        kind: what they are, for the message.
    """
    if not path.parent.is_dir():
        return f"no such folder {path.parent}; create it, or choose another file"
    if path.is_dir():
        return "it is a folder; choose another name"
    if path.exists():
        with path.open("rb") as file:
            is_one = file.read(len(start)) == start
        if not is_one:
            return f"the file is there already and is no {kind}; choose another name or remove it"
    return None
