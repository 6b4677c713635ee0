"""Whether a command can write into the folder that its option ``output`` names, as every command asks it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def folder_problem(output: Path, own: Iterable[str] = ()) -> str | None:
    """Return why a folder cannot be made or written; None: nothing speaks against it.

    Args:
        own: problems of the command's own, of which the first is said where the path may be a folder.
    """
    existing = next((path for path in (output, *output.parents) if os.path.exists(path)), None)
    if existing is not None and not existing.is_dir():
        return f"expected a folder; {existing} is a file"
    if problem := next(iter(own), None):
        return problem
    if existing is not None and not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written to (permissions)"
    return None
