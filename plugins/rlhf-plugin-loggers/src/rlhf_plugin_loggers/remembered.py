"""Identity of a run at a service, kept in the run folder, so that a resumed run goes on there."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "loggers"
"""Folder in the run folder with one file for each logger."""


def remembered(output: Path, logger: str) -> str | None:
    """Return what ``remember`` wrote for a logger in a run folder; None if this folder's run was not logged there."""
    path = output / FOLDER / logger
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def remember(output: Path, logger: str, identity: str) -> None:
    """Write a run's identity at a logger's service durably: after a kill, the file is whole or not there."""
    path = output / FOLDER / logger
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f"{logger}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(f"{identity}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
