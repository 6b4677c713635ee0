"""A PEFT folder as files: its config, and the names and shapes of its tensors. No tensor is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import parse_object

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Text that PEFT puts before each name of the base model."""
CLASSIFIER = "SEQ_CLS"
"""PEFT's name for the task of a sequence classifier, such as a reward model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolder:
    """An adapter's folder."""

    path: Path
    config: Mapping[str, Any]
    """Contents of ``adapter_config.json``."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each tensor by its name in the base model, such as ``lm_head.lora_A.weight``."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors in the file that an older Transformers gave, by their names in the base model (``in_names_of``);
    empty where they are the same."""

    def name_in_file(self, name: str) -> str:
        """Return what the file calls a tensor of ``shapes``."""
        return PREFIX + self.older.get(name, name)

    @property
    def base(self) -> str | None:
        """Folder or hub name of the base that the adapter was trained on; None where none is recorded."""
        return self.config.get("base_model_name_or_path") or None

    def named_base(self) -> str:
        """Return the folder or hub name of the base that is recorded.

        Raises:
            ConfigError: none is, or its folder is gone.
        """
        merge = f"rlhf merge --same-base BASE {self.path} OUT"
        if self.base is None:
            raise ConfigError(
                f"adapter {self.path}: expected the name of its base in {CONFIG}; there is none. Make a plain model: "
                f"{merge}, and give OUT.",
                code="adapter/no-name-of-base",
            )
        if os.path.isabs(self.base) and not os.path.isdir(self.base):
            raise ConfigError(
                f"adapter {self.path}: its base {self.base} is not there. Put it there, or make a plain model of the "
                f"adapter and a copy of its base: {merge}, and give OUT.",
                code="adapter/no-base",
            )
        return self.base

    def require_base(self, base: str, way_out: str) -> None:
        """Refuse another base than the one that the adapter was trained on.

        Args:
            way_out: text on what to do if ``base`` is a copy of that one.

        Raises:
            ConfigError: ``base`` is another one by its name.
        """
        if not self._may_be(base):
            raise ConfigError(
                f"adapter {self.path} was trained on {self.base}, and not on {base}. Give that base; if {base} is a "
                f"copy of it, {way_out}",
                code="adapter/other-base",
            )

    def _may_be(self, base: str) -> bool:
        """Return whether ``base`` may be the base that the adapter was trained on.

        Two folders that are both there have to be the same one. Otherwise the last parts of the names decide, since a
        hub name and a downloaded folder share no more than that.
        """
        named = self.base
        if named is None or named == base:
            return True
        if os.path.isdir(named) and os.path.isdir(base):
            return os.path.samefile(named, base)
        return Path(named).name.lower() == Path(base).name.lower()


def is_adapter(path: str) -> bool:
    """Return whether a path is a PEFT folder."""
    return (Path(path) / CONFIG).is_file()


def read_adapter(path: str) -> AdapterFolder:
    """Return the adapter of a folder.

    Raises:
        ConfigError: the folder is not there, has no adapter, or holds the weights as a pickle.
    """
    folder = Path(path)
    if not os.path.isdir(path):
        raise ConfigError(
            f"adapter {path}: expected a PEFT folder; there is no such folder",
            code="adapter/no-folder",
        )
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"adapter {path}: expected a PEFT folder; it has no {CONFIG}", code="adapter/not-peft"
        )
    if not (folder / WEIGHTS).is_file():
        pickled = sorted(file.name for file in folder.glob("*.bin"))
        why = (
            f"{pickled[0]} is a pickle, which is not read, because it can run code"
            if pickled
            else "it is missing"
        )
        raise ConfigError(
            f"adapter {path}: expected its weights in {WEIGHTS}; {why}", code="adapter/no-weights"
        )
    try:
        config = parse_object((folder / CONFIG).read_bytes())
        with safe_open(str(folder / WEIGHTS), framework="pt") as tensors:
            shapes = {
                name.removeprefix(PREFIX): tuple(tensors.get_slice(name).get_shape())
                for name in tensors.keys()  # noqa: SIM118 - the file is no mapping
            }
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"adapter {path}: cannot be read: {error}", code="adapter/unreadable"
        ) from error
    if not isinstance(config.get("peft_type"), str):
        raise ConfigError(
            f"adapter {path}: expected a peft_type in {CONFIG}; there is none",
            code="adapter/not-peft",
        )
    return AdapterFolder(path=folder, config=config, shapes=shapes)
