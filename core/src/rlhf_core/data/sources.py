"""Opening of a source of rows by the text that the user typed: a file, a folder, or a hub name."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from ..errors import DataError
from . import arrow_sets, text_files
from .source import Source

FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_NAMED = re.compile(r"(?P<name>[\w.-]+)=(?P<source>.+)")


def open_source(spec: str, *, split: str = "train", name: str | None = None) -> Source:
    """Open a data set.

    Args:
        spec: a JSONL, JSON, CSV or Parquet file, a folder, or a hub name (NAME or NAME:CONFIG).
        split: split of a folder or hub set that has several.
        name: short name; None: derived from ``spec``.

    Raises:
        DataError: the file, folder or hub set does not exist, or cannot be read in the format of its name.
    """
    name = name or short_name(spec)
    path = Path(spec)
    if path.is_dir():
        return arrow_sets.open_folder(path, name, split)
    if not path.exists():
        if _is_surely_a_path(spec):
            raise DataError(f"{spec}: no such file{_near_file(path)}")
        if not _HUB_NAME.fullmatch(spec):
            raise DataError(
                f"{spec!r}: expected a file ({', '.join(FILE_SUFFIXES)}), a folder, or a hub name such as "
                "openai/gsm8k:main"
            )
        return arrow_sets.open_hub(spec, name, split)
    if path.stat().st_size == 0:
        raise DataError(f"{spec}: the file is empty; expected at least one row")
    match path.suffix.lower():
        case ".jsonl":
            return text_files.JsonLines(path, name)
        case ".json":
            return text_files.open_json(path, name)
        case ".csv":
            return arrow_sets.open_csv(path, name)
        case ".parquet":
            return arrow_sets.open_parquet(path, name)
    raise DataError(
        f"{spec}: expected a file that ends with {', '.join(FILE_SUFFIXES)}; got {path.suffix or 'no suffix'!r}"
    )


def short_name(spec: str) -> str:
    """Return a file's name without suffix, a folder's name, or the last part of a hub name."""
    if Path(spec).suffix.lower() in FILE_SUFFIXES:
        return Path(spec).stem
    return Path(spec).name if Path(spec).exists() else spec.partition(":")[0].rpartition("/")[2]


def split_name(entry: str) -> tuple[str | None, str]:
    """Return name and source of ``NAME=SOURCE``; the name is None without ``=``, or if the whole text is a file."""
    match = _NAMED.fullmatch(entry)
    if match is None or Path(entry).exists():
        return None, entry
    return match["name"], match["source"]


def _is_surely_a_path(spec: str) -> bool:
    return (
        Path(spec).suffix.lower() in FILE_SUFFIXES
        or spec.startswith(("/", ".", "~"))
        or spec.endswith("/")
        or spec.count("/") > 1
    )


def _near_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent} either; looked from {Path.cwd()})"
    near = difflib.get_close_matches(path.name, sorted(p.name for p in path.parent.iterdir()), n=1)
    if near:
        return f". Did you mean {path.parent / near[0]}?"
    return "" if path.is_absolute() else f" (looked in {Path.cwd()})"
