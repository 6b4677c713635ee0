"""Digests of the data and the models that a run reads, by which a resumed run finds out that they have changed.

All bytes of data count: one edited row is other data. Of a model's weights above ``WHOLE_BYTES``, blocks are read that
lie evenly between beginning and end: training changes every one of them, and a model of 100 GB takes no longer than one
of 1 GB. Earlier versions read data in that way, too, so a digest says if data above ``WHOLE_BYTES`` was read whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from rlhf_core.long_work import told_if_long

from .checks.data_files import files_of, is_pattern

WHOLE_BYTES = 64 << 20
BLOCK_BYTES, NUM_BLOCKS = 64 << 10, 128
CHUNK_BYTES = 1 << 20
SHOWN_DIGITS = 16
MODEL_FILES = ("config.json", "adapter_config.json")
"""A folder with one of them is a model or an adapter."""
WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
SAMPLED, WHOLE = "sha256:", "sha256-all:"
"""Beginnings of digests: ``WHOLE`` where a file was read as a whole of which ``SAMPLED`` has blocks."""


def input_digests(inputs: Iterable[tuple[str, str]], *, sampled: bool = False) -> dict[str, str]:
    """Return the digest of the names and contents of the files of each input that is a file, a folder or a pattern.

    Args:
        inputs: options, each with the name of a set or a model; hub names have no digest.
        sampled: take blocks of large data too, as earlier versions did.
    """
    wanted = {f"{option} {name}": files for option, name in inputs if (files := _files(name))}
    with (
        told_if_long("reading the files that a resumed run compares"),
        ThreadPoolExecutor() as pool,
    ):
        digests = pool.map(_digest, wanted.values(), repeat(sampled))  # hashlib lets threads run
        return dict(zip(wanted, digests, strict=True))


def comparable(
    digests: Mapping[str, str], before: Mapping[str, str], inputs: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Return the digests, those of blocks where ``before`` may have such of data that is read whole today.

    Args:
        digests: ``input_digests(inputs)``.
        before: digests of a checkpoint.
    """
    again = [
        (option, name)
        for option, name in inputs
        if digests.get(key := f"{option} {name}", "").startswith(WHOLE)
        and before.get(key, "").startswith(SAMPLED)
    ]
    return {**digests, **input_digests(again, sampled=True)}


def _files(name: str) -> tuple[Path, ...]:
    if is_pattern(name):
        return tuple(map(Path, files_of(name)))
    if os.path.isdir(name):
        # Folders below a model's own files are checkpoints, say, of whoever trained it.
        is_model = any(os.path.isfile(os.path.join(name, file)) for file in MODEL_FILES)
        found = Path(name).glob("*") if is_model else Path(name).rglob("*")
        return tuple(sorted(file for file in found if file.is_file()))
    return (Path(name),) if os.path.isfile(name) else ()


def _digest(files: tuple[Path, ...], sampled: bool) -> str:
    sha256, begins = hashlib.sha256(), SAMPLED
    is_model = any(file.name in MODEL_FILES for file in files)
    try:
        for file in files:
            size = file.stat().st_size
            sha256.update(f"{file.name} {size}\n".encode(errors="surrogateescape"))
            is_whole = size <= WHOLE_BYTES
            if not (is_whole or sampled or (is_model and file.suffix in WEIGHTS)):
                is_whole, begins = True, WHOLE
            for part in _chunks(file) if is_whole else _blocks(file, size):
                sha256.update(part)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"{begins}{sha256.hexdigest()[:SHOWN_DIGITS]}"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for block in range(NUM_BLOCKS):
            file.seek(block * (size - BLOCK_BYTES) // (NUM_BLOCKS - 1))
            yield file.read(BLOCK_BYTES)
