"""Digests of the data and the models that a run reads, by which a resumed run finds out that they have changed.

Files of up to ``WHOLE_BYTES`` are read as a whole. Of larger ones, such as weights, blocks are read that lie evenly
between beginning and end: training changes every one of them, and a model of 100 GB takes no longer than one of 1 GB.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlhf_config.checks.data_files import files_of, is_pattern

WHOLE_BYTES = 64 << 20
BLOCK_BYTES, NUM_BLOCKS = 64 << 10, 128
CHUNK_BYTES = 1 << 20
SHOWN_DIGITS = 16
MODEL_FILES = ("config.json", "adapter_config.json")
"""A folder with one of them is a model or an adapter."""


def input_digests(inputs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the digest of the names and contents of the files of each input that is a file, a folder or a pattern.

    Args:
        inputs: options, each with the name of a set or a model; hub names have no digest.
    """
    wanted = {f"{option} {name}": files for option, name in inputs if (files := _files(name))}
    with ThreadPoolExecutor() as threads:  # hashlib lets other threads run
        return dict(zip(wanted, threads.map(_digest, wanted.values()), strict=True))


def _files(name: str) -> tuple[Path, ...]:
    if is_pattern(name):
        return tuple(map(Path, files_of(name)))
    if os.path.isdir(name):
        # Folders below a model's own files are checkpoints, say, of whoever trained it.
        is_model = any(os.path.isfile(os.path.join(name, file)) for file in MODEL_FILES)
        found = Path(name).glob("*") if is_model else Path(name).rglob("*")
        return tuple(sorted(file for file in found if file.is_file()))
    return (Path(name),) if os.path.isfile(name) else ()


def _digest(files: tuple[Path, ...]) -> str:
    sha256 = hashlib.sha256()
    try:
        for file in files:
            size = file.stat().st_size
            sha256.update(f"{file.name} {size}\n".encode(errors="surrogateescape"))
            for part in _parts(file, size):
                sha256.update(part)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"sha256:{sha256.hexdigest()[:SHOWN_DIGITS]}"


def _parts(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            while data := file.read(CHUNK_BYTES):
                yield data
            return
        for block in range(NUM_BLOCKS):
            file.seek(block * (size - BLOCK_BYTES) // (NUM_BLOCKS - 1))
            yield file.read(BLOCK_BYTES)
