"""Cache of rows as tokens, by their content: a second start with the same rows, options and tokenizer reads no row.

The key is a hash of the files themselves, of the options of ``data`` that rows are read by, of the tokenizer with its
chat template, and of the code that makes tokens of rows. So there is nothing to invalidate by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_config.checks.data_files import files_of, is_pattern, split_name
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.errors import DataError
from rlhf_core.outside.json_reader import BrokenJson, parse_object
from rlhf_core.storage.atomic import remove, sync_tree

from ...arrow_sets import hub_fingerprint
from ...chat.control_words import template_text
from ...chat.renderer import TokenizerRenderer
from ...held_out.sides import Side
from ..options import SequenceOptions
from .columns_on_disk import ColumnWriter, StoredColumns, mapped, sizes_of

OFF, AUTO = "off", "auto"
UNUSED_DAYS = 30
"""An entry that was not used for so many days is removed when another one is written."""
_ACCOUNT = "account.json"
_FREE = {"train", "shuffle", "probabilities", "cache"}
"""Options of ``data`` that change no row."""
_LIBRARIES = ("transformers", "tokenizers", "jinja2")


class TokenCache:
    """The entry of some sets in a folder of entries.

    Args:
        folder: folder of all entries.
        key: name of the entry, see ``key_of``.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._entry = folder / key

    def find(self) -> tuple[StoredColumns, Mapping[str, Any]] | None:
        """Return the sequences of the entry and the counts stored with them; None without an entry.

        Raises:
            DataError: the entry is damaged.
        """
        account = self._entry / _ACCOUNT
        if not account.exists():
            return None
        try:
            kept = parse_object(account.read_bytes())
        except (OSError, BrokenJson):
            kept = {}
        if kept.get("sizes") != sizes_of(self._entry) or "account" not in kept:
            raise DataError(
                f"{self._entry}: expected files of the sizes that were written, got others. Remove this folder; the "
                "rows are read again.",
                code="data/damaged-cache",
            )
        os.utime(account)
        return mapped(self._entry), kept["account"]

    def writer(self) -> EntryWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        return EntryWriter(Path(tempfile.mkdtemp(prefix=".writing-", dir=self._folder)), self)

    def keep(self, written: Path, account: Mapping[str, Any]) -> StoredColumns:
        """Make a written folder the entry, and return its sequences."""
        text = json.dumps({"sizes": sizes_of(written), "account": account})
        (written / _ACCOUNT).write_text(text, encoding="utf-8")
        sync_tree(written)
        found = mapped(written)
        try:
            written.rename(self._entry)
        except OSError:
            # Another run has written the same entry meanwhile. The files stay as long as they are mapped.
            shutil.rmtree(written)
        self._remove_unused()
        return found

    def _remove_unused(self) -> None:
        oldest = time.time() - UNUSED_DAYS * 86_400
        for account in self._folder.glob(f"*/{_ACCOUNT}"):
            if account.stat().st_mtime < oldest:
                remove(account.parent)


class EntryWriter:
    """Writer of an entry, which is there once ``keep`` has returned.

    Args:
        folder: folder that becomes the entry.
    """

    def __init__(self, folder: Path, entry: TokenCache) -> None:
        self._folder = folder
        self._cache = entry
        self._columns = ColumnWriter(folder)

    def add(self, rows: TrajectoryColumns, read: NDArray[np.uint64]) -> None:
        """Add sequences, each with the hash of what the model reads of its row."""
        self._columns.add(rows, read)

    def keep(self, account: Mapping[str, Any]) -> StoredColumns:
        """Return the sequences that were added, mapped into memory."""
        self._columns.close()
        return self._cache.keep(self._folder, account)

    def discard(self) -> None:
        """Remove what was written."""
        self._columns.close()
        remove(self._folder)


def folder_of(cache_option: str) -> Path | None:
    """Return the folder of ``data.cache``; None for ``off``."""
    if cache_option == OFF:
        return None
    if cache_option != AUTO:
        return Path(cache_option)
    if own := os.environ.get("RLHF_CACHE"):
        return Path(own) / "tokens"
    start = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(start) / "rlhf" / "tokens"


def key_of(
    sets: Sequence[str],
    columns: Any,
    options: SequenceOptions,
    renderer: TokenizerRenderer,
    *,
    form: str,
    eos: int,
    side: Side,
    also: Sequence[str] = (),
) -> str:
    """Return the name of an entry, a hash of all that decides about its tokens.

    Args:
        columns: options model with the names of the columns; the options of a command are both.
        form: name of the form of rows.
        also: what decides beside this, such as a second rendering.
    """
    given = {**columns.model_dump(mode="json"), **options.model_dump(mode="json")}
    content = {
        "sets": [_content(entry, options.split) for entry in sets],
        "options": {name: value for name, value in given.items() if name not in _FREE},
        "form": form,
        "side": asdict(side),
        "tokenizer": tokenizer_content(renderer, eos),
        "also": list(also),
        "code": _code(),
    }
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _content(entry: str, split: str) -> list[str]:
    """Return the name of a set and a hash of its rows."""
    name, spec = split_name(entry)
    path = Path(spec)
    if is_pattern(spec):
        # A set of several files may be called after their folder.
        files, start, own_name = [Path(file) for file in files_of(spec)], Path(), spec
    elif path.exists():
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        start, own_name = path, path.name
    else:
        return [name or "", hub_fingerprint(spec, split)]
    digest = hashlib.blake2b(digest_size=20)
    for file in files:
        if file.is_file():
            digest.update(os.path.relpath(file, start).encode("utf-8", "surrogateescape"))
            with file.open("rb") as opened:
                while block := opened.read(1 << 22):
                    digest.update(block)
    return [name or "", own_name, digest.hexdigest()]


def tokenizer_content(renderer: TokenizerRenderer, eos: int) -> list[str]:
    """Return what decides about the tokens of a text, as texts."""
    tokenizer = renderer.tokenizer
    # What the backend holds is the whole of it: vocabulary, merges, normalization, added tokens.
    whole = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else repr(tokenizer)
    return [
        type(tokenizer).__qualname__,
        hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest(),
        template_text(tokenizer),
        repr(tokenizer.special_tokens_map),
        repr(renderer.texts.prefix),
        str(eos),
    ]


@cache
def _code() -> str:
    """Return a hash of the modules that make tokens of rows, and of the libraries that they ask."""
    room = Path(__file__).parents[2]
    digest = hashlib.blake2b(digest_size=20)
    for module in sorted(room.rglob("*.py")):
        digest.update(module.read_bytes())
    versions = [f"{name} {metadata.version(name)}" for name in _LIBRARIES]
    digest.update(" ".join(versions).encode())
    return digest.hexdigest()
