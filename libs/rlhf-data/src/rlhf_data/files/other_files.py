"""Refusal of files that are not read, each with the way to one that is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rlhf_config.checks.data_files import SUFFIXES
from rlhf_core.errors import DataError

_UNPACKED = {".zst": "unzstd", ".bz2": "bunzip2", ".xz": "unxz", ".zip": "unzip", ".7z": "7z x"}
"""Ending of a packed file -> the command that unpacks it."""
_RENAMED = {".ndjson": ".jsonl", ".jsonlines": ".jsonl", ".jl": ".jsonl", ".pq": ".parquet"}
"""Ending of a file of a kind that is read under another name -> that name's."""
_CONVERTED = {
    ".tsv": "pandas.read_csv({old!r}, sep='\\t', dtype=str).to_csv({csv!r}, index=False)",
    ".tab": "pandas.read_csv({old!r}, sep='\\t', dtype=str).to_csv({csv!r}, index=False)",
    ".xls": "pandas.read_excel({old!r}, dtype=str).to_csv({csv!r}, index=False)",
    ".xlsx": "pandas.read_excel({old!r}, dtype=str).to_csv({csv!r}, index=False)",
    ".arrow": "datasets.Dataset.from_file({old!r}).to_parquet({parquet!r})",
    ".feather": "pandas.read_feather({old!r}).to_parquet({parquet!r})",
}
"""Ending of a file of another kind -> the call that writes one that is read."""

_SLICED = re.compile(r"(?P<whole>.+)\[\d*%?:\d*%?\]")
"""A slice, as ``datasets`` takes it in the name of a split."""
_CONTENTS = {
    b"\x1f\x8b": ("packed by gzip", "Call it {old}.gz"),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "Unpack it: unzstd {old}"),
    b"PK\x03\x04": (
        "a ZIP archive or a workbook",
        "Unpack it, or save the sheet as CSV with UTF-8",
    ),
    b"PAR1": ("a Parquet file", "Call it {parquet}"),
}
"""First bytes of a file -> what it is, and the way to rows."""


def unknown_format(path: Path) -> DataError:
    """Return the error of a file whose name has no ending that is read, with the way to one that has."""
    return DataError(
        f"{path}: expected a file that ends with {', '.join(SUFFIXES)}, or, but for Parquet, with .gz behind it; got "
        f"{path.suffix or 'no suffix'!r}. {_way(path)}",
        code="data/unknown-format",
    )


def refuse_slice(spec: str) -> None:
    """Refuse the name of a set with a slice behind it.

    Raises:
        DataError: it has one.
    """
    if sliced := _SLICED.fullmatch(spec):
        raise DataError(
            f"{spec}: expected a file, a folder or a hub name; got a slice of one. Give {sliced['whole']}, with "
            "--data.max_samples for its first rows, or write the part into a file of its own",
            code="data/unknown-format",
        )


def refuse_other_content(path: Path) -> None:
    """Refuse a file whose name promises text, and which is packed or a table of another kind.

    Raises:
        DataError: it is such a file.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(4)
    except OSError:
        return  # Who reads it says why.
    for begin, (kind, way) in _CONTENTS.items():
        if first.startswith(begin):
            raise DataError(
                f"{path}: expected text, as its name says; the file is {kind}. "
                f"{way.format(old=path, parquet=path.with_suffix('.parquet'))}",
                code="data/unknown-format",
            )


def _way(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix in _RENAMED:
        return f"Call the file {path.with_suffix(_RENAMED[suffix])}"
    if suffix in _CONVERTED:
        names = {kind: str(path.with_suffix(f".{kind}")) for kind in ("csv", "parquet")}
        return f"Convert it: {_CONVERTED[suffix].format(old=str(path), **names)}"
    if suffix in _UNPACKED:
        return f"Unpack it: {_UNPACKED[suffix]} {shlex.quote(str(path))}"
    if suffix == ".tar":
        return (
            "Unpack it, and write a file with a row for each of its samples, with paths of images"
        )
    return f"Write the rows as JSON, one object a line, into a file {path.with_suffix('.jsonl')}"
