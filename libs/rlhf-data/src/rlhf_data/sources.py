"""Opening of a source of rows by the text that the user typed: a file, a folder, or a hub name."""

from __future__ import annotations

import difflib
import gzip
import os
import re
import shutil
import tempfile
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
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
from rlhf_core.storage.writing import FULL, writing

from . import arrow_sets
from .files import text_files
from .files.other_files import refuse_other_content, refuse_slice, unknown_format
from .files.texts import TextFile
from .source import Row, Source, Unreadable

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
        refuse_slice(spec)
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


def reach_source(spec: str) -> None:
    """Ask whether the hub can be reached, where a data set is not on this machine; ``spec`` as in ``open_source``.

    Raises:
        DataError: the hub cannot be reached, and nothing of that name was downloaded earlier.
    """
    is_here = is_pattern(spec) or _is_surely_a_path(spec) or Path(spec).exists()
    if not is_here and _HUB_NAME.fullmatch(spec):
        arrow_sets.reach_set(spec)


def _open_file(path: Path, name: str) -> Source:
    suffix = suffix_of(path.name)
    if not is_packed(path.name) or suffix not in SUFFIXES:
        if suffix in SUFFIXES and suffix != ".parquet":
            refuse_other_content(path)
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
    raise unknown_format(path)


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


def unpacked(path: Path) -> Path:
    """Return a new temporary file with the content of a file packed by gzip; who asks for it removes it.

    Rows are read by their place, which a packed file does not tell.

    Raises:
        DataError: the file cannot be read, or is damaged.
        StorageError: the folder of temporary files has no room.
    """
    handle, name = tempfile.mkstemp(suffix=Path(path.stem).suffix)
    with writing(f"{name}, {path} without its packing,", Path(name)):
        try:
            with gzip.open(path) as packed, os.fdopen(handle, "wb") as plain:
                shutil.copyfileobj(packed, plain, 2**20)
        except (EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise DataError(
                f"{path}: expected a file packed by gzip; unpacking it failed: {error}",
                code="data/not-gzip",
            ) from error
    return Path(name)


class JoinedFiles:
    """Source of the rows of several sources, as of the files of a pattern, in their order."""

    def __init__(self, parts: Sequence[Source], name: str) -> None:
        self.name = name
        self._parts = parts
        self._starts = list(accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Row:
        part, at = self._place(index)
        return part.row(at)

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        for part in self._parts:
            yield from part.scan(columns)

    def where(self, index: int) -> str:
        part, at = self._place(index)
        return part.where(at)

    def _place(self, index: int) -> tuple[Source, int]:
        number = bisect_right(self._starts, index) - 1
        return self._parts[number], index - self._starts[number]
