"""Digests of the data and the models that a run reads, by which a resumed run finds out that they have changed.

All bytes count: one edited row is other data, and one edited tensor another model. Only of a model with more than
``WHOLE_WEIGHTS_BYTES`` of weights blocks are read that lie evenly between beginning and end: training changes every one
of them, and a model of 100 GB would have to be read as a whole before anything else begins.

A core of an AMD EPYC has 1.6 GiB/s of SHA-256 with its SHA instructions, 0.6 without them, and 1.2 of blake2b, which is
not taken since it is slower where models are trained. All cores read segments of weights at once. Earlier versions read
blocks of all large files, so a digest says if files above ``WHOLE_BYTES`` were read whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path

from rlhf_core.long_work import log_if_long

from .checks.data_files import files_of, is_pattern

WHOLE_BYTES = 64 << 20
WHOLE_WEIGHTS_BYTES = 16 << 30
"""Bound of the weights of one model together, in files above ``WHOLE_BYTES``."""
BLOCK_BYTES, NUM_BLOCKS = 64 << 10, 128
CHUNK_BYTES = 1 << 20
SEGMENT_BYTES = 64 << 20
"""Part of a file of weights that one thread reads."""
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
        sampled: take blocks of all large files, as earlier versions did.
    """
    wanted = {f"{option} {name}": files for option, name in inputs if (files := _files(name))}
    different = tuple(dict.fromkeys(wanted.values()))
    with (
        log_if_long("reading the files that a resumed run compares"),
        ThreadPoolExecutor() as pool,  # hashlib lets threads run
        ThreadPoolExecutor() as segments,  # of its own: a thread that waits for segments keeps no other from them
    ):
        digests = pool.map(_digest, different, repeat(sampled), repeat(segments))
        found = dict(zip(different, digests, strict=True))
    return {key: found[files] for key, files in wanted.items()}


def comparable(
    digests: Mapping[str, str], before: Mapping[str, str], inputs: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Return the digests, those of blocks where ``before`` may have such of files that are read whole today.

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


def _digest(files: tuple[Path, ...], sampled: bool, segments: ThreadPoolExecutor) -> str:
    sha256, begins = hashlib.sha256(), SAMPLED
    try:
        sizes = {file: file.stat().st_size for file in files}
        weights = _large_weights(sizes)
        sampled_weights = sampled or sum(map(sizes.__getitem__, weights)) > WHOLE_WEIGHTS_BYTES
        for file, size in sizes.items():
            sha256.update(f"{file.name} {size}\n".encode(errors="surrogateescape"))
            if size <= WHOLE_BYTES:
                parts = _chunks(file)
            elif sampled_weights if file in weights else sampled:
                parts = _blocks(file, size)
            else:
                begins = WHOLE
                parts = _segments(file, size, segments) if file in weights else _chunks(file)
            for part in parts:
                sha256.update(part)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"{begins}{sha256.hexdigest()[:SHOWN_DIGITS]}"


def _large_weights(sizes: Mapping[Path, int]) -> frozenset[Path]:
    """Return the files of a model's weights that are large; none where the files are no model's."""
    if not any(file.name in MODEL_FILES for file in sizes):
        return frozenset()
    return frozenset(
        file for file, size in sizes.items() if file.suffix in WEIGHTS and size > WHOLE_BYTES
    )


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def _segments(path: Path, size: int, pool: ThreadPoolExecutor) -> Iterator[bytes]:
    """Return the SHA-256 of each segment, in their order."""
    return pool.map(partial(_segment, path), range(0, size, SEGMENT_BYTES))


def _segment(path: Path, start: int) -> bytes:
    sha256, left = hashlib.sha256(), SEGMENT_BYTES
    with path.open("rb") as file:
        file.seek(start)
        while left and (data := file.read(min(left, CHUNK_BYTES))):
            sha256.update(data)
            left -= len(data)
    return sha256.digest()


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for block in range(NUM_BLOCKS):
            file.seek(block * (size - BLOCK_BYTES) // (NUM_BLOCKS - 1))
            yield file.read(BLOCK_BYTES)
