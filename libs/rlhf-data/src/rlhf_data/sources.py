"""Opening of a source of rows by the text that the user typed: a file, a folder, or a hub name."""

from __future__ import annotations

import difflib
import re
import weakref
from pathlib import Path

from rlhf_config.checks.data_files import (
    SUFFIXES,
    files_of,
    is_packed,
    is_pattern,
    short_name,
    suffix_of,
)
from rlhf_core.errors import DataError

from . import arrow_sets
from .files import text_files
from .files.joined import JoinedFiles
from .files.packed import unpacked
from .files.texts import TextFile
from .source import Source

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


def open_source(spec: str, *, split: str = "train", name: str | None = None) -> Source:
    """Open a data set.

    Args:
        spec: a JSONL, JSON, CSV, Parquet or text file, also packed by gzip, a pattern of several files, a folder, or a
            hub name (NAME or NAME:CONFIG).
        split: split of a folder or hub set that has several.
        name: short name; None: derived from ``spec``.

    Raises:
        DataError: the file, folder or hub set does not exist, or cannot be read in the format of its name.
    """
    name = name or short_name(spec)
    path = Path(spec)
    if path.is_dir():
        return arrow_sets.open_folder(path, name, split)
    if is_pattern(spec):
        return _open_pattern(spec, name)
    if not path.exists():
        if _is_surely_a_path(spec):
            raise DataError(f"{spec}: no such file{_near_file(path)}", code="data/file-not-found")
        if not _HUB_NAME.fullmatch(spec):
            raise DataError(
                f"{spec!r}: expected a file ({', '.join(SUFFIXES)}), a folder, or a hub name such as "
                "openai/gsm8k:main",
                code="data/unknown-format",
            )
        return arrow_sets.open_hub(spec, name, split)
    if path.stat().st_size == 0:
        raise DataError(
            f"{spec}: the file is empty; expected at least one row", code="data/no-rows"
        )
    return _open_file(path, name)


def _open_file(path: Path, name: str) -> Source:
    suffix = suffix_of(path.name)
    if not is_packed(path.name) or suffix not in SUFFIXES:
        return _open_content(path, name, suffix)
    content = unpacked(path)
    try:
        source = _open_content(path, name, suffix, content)
    except DataError:
        content.unlink()
        raise
    weakref.finalize(source, content.unlink, missing_ok=True)
    return source


def _open_content(path: Path, name: str, suffix: str, content: Path | None = None) -> Source:
    match suffix:
        case ".jsonl":
            return text_files.JsonLines(path, name, content)
        case ".json":
            return text_files.open_json(path, name, content)
        case ".csv":
            return arrow_sets.open_csv(path, name, content)
        case ".txt":
            return TextFile(path, name, content)
        case ".parquet" if content is None:
            return arrow_sets.open_parquet(path, name)
    raise DataError(
        f"{path}: expected a file that ends with {', '.join(SUFFIXES)}, or, but for Parquet, with .gz behind it; got "
        f"{path.suffix or 'no suffix'!r}",
        code="data/unknown-format",
    )


def _open_pattern(pattern: str, name: str) -> Source:
    files = files_of(pattern)
    if not files:
        raise DataError(
            f"{pattern}: no file is called so; looked from {Path.cwd()}", code="data/file-not-found"
        )
    return JoinedFiles([open_source(file) for file in files], name)


def _is_surely_a_path(spec: str) -> bool:
    return (
        suffix_of(spec) in SUFFIXES
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
