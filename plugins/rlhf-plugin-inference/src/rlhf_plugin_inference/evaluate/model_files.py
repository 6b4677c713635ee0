"""The model's files as they were when an evaluation began, so that results of two models are never in one folder.

A run that is trained again exports to the same folder; its path says nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from rlhf_core import ConfigError
from rlhf_trainer.inference import write_text_atomically

from ..serving.options import ModelToServe

NAME = "model_files.txt"
_READ = ("*.safetensors", "*.json", "*.jinja", "*.model")


def check_same_files(model: ModelToServe, folder: Path, *, is_begun: bool) -> None:
    """Write the digest of the model's files into a folder, or compare it with the one that is there.

    Names, sizes and times of change are compared, not contents. A hub name has no files to compare.

    Args:
        is_begun: whether the folder has results.

    Raises:
        ConfigError: the files have changed since.
    """
    digest = hashlib.sha256("\n".join(_lines(model)).encode()).hexdigest()
    record = folder / NAME
    if not is_begun or not record.exists():
        write_text_atomically(record, f"{digest}\n")
    elif record.read_text(encoding="utf-8").strip() != digest:
        raise ConfigError(
            f"model {model.adapter or model.path}: its files have changed since the results in {folder} were made. "
            "Choose another --output, or begin anew with --resume restart, which keeps them, or --overwrite.",
            code="model/files-changed",
        )


def _lines(model: ModelToServe) -> Iterator[str]:
    for path in (model.path, model.adapter, model.tokenizer):
        if path is None or not Path(path).is_dir():
            continue
        for file in sorted({file for pattern in _READ for file in Path(path).glob(pattern)}):
            state = file.stat()
            yield f"{file.name} {state.st_size} {state.st_mtime_ns}"
