"""Packed files, unpacked beside the run: rows are read by their place, which a packed file does not tell."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from pathlib import Path

from rlhf_core.errors import DataError


def unpacked(path: Path) -> Path:
    """Return a new temporary file with the content of a file packed by gzip; who asks for it removes it.

    Raises:
        DataError: the file cannot be read, or is damaged.
    """
    handle, name = tempfile.mkstemp(suffix=Path(path.stem).suffix)
    try:
        with gzip.open(path) as packed, os.fdopen(handle, "wb") as plain:
            shutil.copyfileobj(packed, plain, 2**20)
    except (EOFError, zlib.error, OSError) as error:
        os.unlink(name)
        raise DataError(
            f"{path}: expected a file packed by gzip; unpacking it failed: {error}"
        ) from error
    return Path(name)
