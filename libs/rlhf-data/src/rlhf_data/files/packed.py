"""Packed files, unpacked beside the run: rows are read by their place, which a packed file does not tell."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from pathlib import Path

from rlhf_core.errors import DataError
from rlhf_core.storage.writing import FULL, writing


def unpacked(path: Path) -> Path:
    """Return a new temporary file with the content of a file packed by gzip; who asks for it removes it.

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
                code="data/unreadable-file",
            ) from error
    return Path(name)
