"""Atomic writing: after a kill at any moment a reader sees the old state or the new one, never a part of one."""

from __future__ import annotations

import os
import shutil
import stat
from itertools import count
from pathlib import Path

READ_AND_WRITE = 0o666
"""Rights that a file takes over from its folder."""


def sync_tree(folder: Path) -> None:
    """Make every file and folder below ``folder`` durable, and open each file to whom its folder is open.

    A library may write a file under another name that is its owner's alone, as safetensors does.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                wanted = found | (path.parent.stat().st_mode & READ_AND_WRITE)
                if wanted != found:
                    os.fchmod(file.fileno(), wanted)
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to ``NAME.damaged``, or ``NAME.damaged-2`` and so on, and return its new path."""
    names = (f"{path.name}.damaged{'' if n == 1 else f'-{n}'}" for n in count(1))
    aside = next(
        path.with_name(name) for name in names if not os.path.lexists(path.with_name(name))
    )
    path.rename(aside)
    return aside
