"""Identity of a run at a service, kept in the run folder, so that a resumed run goes on there.

Beside it stands which folder it was written in. A copy of the folder is another one, and gets a run of its own at the
service; one that was moved within its disk, or is seen at the same path from another machine, is the same.
"""

from __future__ import annotations

import logging
from pathlib import Path

from rlhf_core.storage import write_text_atomically

FOLDER = "loggers"
"""Folder in the run folder with one file for each logger."""

log = logging.getLogger(__name__)


def remembered(output: Path, logger: str) -> str | None:
    """Return what ``remember`` wrote for a logger in a run folder; None if this folder's run was not logged there."""
    path = output / FOLDER / logger
    if not path.exists():
        return None
    identity, *places = path.read_text(encoding="utf-8").splitlines()
    if places and not {*places} & {*_places(output)}:
        log.warning(
            "%s is a copy of %s, whose run at %s is %s; this run begins one of its own there. If the folder was moved, "
            "write %s alone into %s",
            output,
            places[0],
            logger,
            identity,
            identity,
            path,
        )
        return None
    return identity


def remember(output: Path, logger: str, identity: str) -> None:
    """Write a run's identity at a logger's service durably: after a kill, the file is whole or not there.

    Raises:
        StorageError: the file could not be written.
    """
    path = output / FOLDER / logger
    path.parent.mkdir(exist_ok=True)
    write_text_atomically(path, "".join(f"{line}\n" for line in (identity, *_places(output))))


def _places(output: Path) -> tuple[str, str]:
    """Return the folder's path and its number on its disk; a moved folder keeps the second, a copy neither."""
    return str(output.resolve()), f"inode {output.stat().st_ino}"
