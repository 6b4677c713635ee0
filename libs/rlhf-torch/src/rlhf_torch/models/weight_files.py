"""A model's weights as its files have them, a tensor at a time; no model is built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import cached_file

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import parse_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_EMBEDDINGS = re.compile(r"(?:^|\.)(?:embed_tokens|wte|embed_in|word_embeddings)\.weight")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight")
PICKLED = re.compile(r"pytorch_model.*\.bin")


def weight_files(path: str) -> list[Path]:
    """Return the safetensors files of a folder or hub name; none where it has no weights in safetensors.

    Files of a hub name are downloaded unless they are in the cache.

    Raises:
        ConfigError: the index cannot be read, or a file that it names is missing.
    """
    single = model_file(path, SINGLE)
    if single is not None:
        return [single]
    index = model_file(path, INDEX)
    if index is None:
        return []
    try:
        names = sorted(set(parse_object(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"model {path}: {INDEX} cannot be read: {error!r}", code="model/weights-unreadable"
        ) from error
    files = {name: model_file(path, name) for name in names}
    if lacking := [name for name, file in files.items() if file is None]:
        raise ConfigError(
            f"model {path}: {INDEX} names {lacking[0]}, which is missing; expected all files of the model",
            code="model/file-missing",
        )
    return [file for file in files.values() if file is not None]


def pickled_weights(path: str) -> str | None:
    """Return a file of pickled weights of a folder without safetensors; None where there is none. Not every pickle is
    one: Transformers' trainer leaves ``training_args.bin`` beside the weights."""
    names = [file.name for file in sorted(Path(path).glob("*"))]
    if any(name.endswith(".safetensors") for name in names):
        return None
    return next((name for name in names if PICKLED.fullmatch(name)), None)


def stored_weights(path: str, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor of a folder or hub name by its name, floating-point ones as ``dtype``, on the CPU.

    Raises:
        ConfigError: there are no weights in safetensors, or they cannot be read.
    """
    files = weight_files(path)
    if not files:
        raise ConfigError(
            f"model {path}: its weights cannot be read: expected {SINGLE} or {INDEX}; there is neither",
            code="model/no-weights",
        )
    try:
        for file in files:
            with safe_open(str(file), framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - the file is no mapping
                    tensor: Tensor = tensors.get_tensor(name)
                    yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(
            f"model {path}: its weights cannot be read: {error}", code="model/weights-unreadable"
        ) from error


def holds_another_head(path: str, *, trust_remote_code: bool = False) -> bool:
    """Return whether a config.json says that embedding and head are one matrix (``tie_word_embeddings``), while the
    files hold two that differ. Transformers 5 then computes with both, and who goes by the config with one.

    False where there is no config, or no weights in safetensors: whoever loads them says what is wrong.
    """
    try:
        config: Any = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception:  # of any type: the config may have code of its own
        return False
    if not getattr(config, "tie_word_embeddings", False):
        return False
    places: dict[re.Pattern[str], tuple[Path, str]] = {}
    for file in weight_files(path):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - the file is no mapping
                places |= {one: (file, name) for one in (_EMBEDDINGS, _HEAD) if one.search(name)}
    if len(places) < 2:
        return False
    embeddings, head = (_tensor(*places[one]) for one in (_EMBEDDINGS, _HEAD))
    return not torch.equal(embeddings, head)


def _tensor(file: Path, name: str) -> Tensor:
    with safe_open(str(file), framework="pt") as tensors:
        found: Tensor = tensors.get_tensor(name)
        return found


def model_file(path: str, name: str) -> Path | None:
    """Return a file of a folder or hub name; None if there is none, or no network to ask.

    Raises:
        ConfigError: the file cannot be read.
    """
    options: dict[str, Any] = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    try:
        found = cached_file(path, name, **options)
    except OSError as error:
        raise ConfigError(
            f"model {path}: {name} cannot be read: {error}", code="model/weights-unreadable"
        ) from error
    return None if found is None else Path(found)
