"""Names of data files and sets: the endings that can be read, patterns of several files, and what a set is called."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
"""Endings of files that are sets of rows."""
PACKED = ".gz"
"""Ending behind one of ``SUFFIXES``, but Parquet's, which is packed by itself."""


_NAMED = re.compile(r"(?P<name>[\w.-]+)=(?P<source>.+)")


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


def short_name(spec: str) -> str:
    """Return a file's name without suffix, what a pattern's name begins with, a folder's name, or the last part of a
    hub name."""
    if is_pattern(spec):
        begin = re.split(r"[*?[]", Path(spec).name)[0].strip("._-")
        return begin or Path(spec).parent.name or "files"
    if suffix_of(spec) in SUFFIXES:
        return Path(Path(spec).stem).stem if is_packed(spec) else Path(spec).stem
    return Path(spec).name if Path(spec).exists() else spec.partition(":")[0].rpartition("/")[2]


def split_name(entry: str) -> tuple[str | None, str]:
    """Return name and source of ``NAME=SOURCE``; the name is None without ``=``, or if the whole text is a file."""
    match = _NAMED.fullmatch(entry)
    if match is None or Path(entry).exists():
        return None, entry
    return match["name"], match["source"]


def set_name(entry: str) -> str:
    """Return what the set of an option's entry is called: as ``NAME=SOURCE`` says, else its short name."""
    name, spec = split_name(entry)
    return name or short_name(spec)
