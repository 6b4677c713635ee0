"""Names of data files: the endings that can be read, and patterns of several files."""

from __future__ import annotations

import glob
import os
from pathlib import Path

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
"""Endings of files that are sets of rows."""
PACKED = ".gz"
"""Ending behind one of ``SUFFIXES``, but Parquet's, which is packed by itself."""


def suffix_of(name: str) -> str:
    """Return the ending by which a file is read, in lower case and without that of a packed one."""
    path = Path(name)
    return Path(path.stem).suffix.lower() if is_packed(name) else path.suffix.lower()


def is_packed(name: str) -> bool:
    """Return whether a file is packed by gzip."""
    return Path(name).suffix.lower() == PACKED


def is_pattern(name: str) -> bool:
    """Return whether a name stands for several files, as in ``part-*.jsonl``; a file of this very name is none."""
    return glob.has_magic(name) and suffix_of(name) in SUFFIXES and not os.path.exists(name)


def files_of(pattern: str) -> list[str]:
    """Return the files of a pattern in the order of their names; ``**`` stands for any folders."""
    return sorted(name for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
