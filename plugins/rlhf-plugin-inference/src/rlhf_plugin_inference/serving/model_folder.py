"""Folders by which a model is named: its own, a run's, which exported one, or an adapter's, which names its base.

Importing this module imports no torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from .options import ModelToServe

_CONFIG, _ADAPTER, _EXPORT = "config.json", "adapter_config.json", "model"


def is_peft_folder(path: str) -> bool:
    """Return whether a path is a PEFT folder, or a run's folder that exported one."""
    return os.path.isfile(os.path.join(exported_by(path), _ADAPTER))


def exported_by(path: str) -> str:
    """Return the folder of the model that the run in a folder exported; any other path or name as it is."""
    has_model = any(os.path.isfile(os.path.join(path, name)) for name in (_CONFIG, _ADAPTER))
    export = os.path.join(path, _EXPORT)
    return export if not has_model and os.path.isdir(export) else path


def found_model(model: ModelToServe) -> ModelToServe:
    """Return the options with the folder of a run replaced by its model, and an adapter's by its base beside it.

    Raises:
        ConfigError: the adapter's files cannot be read, or its base is not known or not there.
    """
    path = exported_by(model.path)
    if not is_peft_folder(path):
        return model.model_copy(update={"path": path})
    # Imported here: the options of commands need no safetensors.
    from rlhf_torch.adapters.folder import read_adapter

    own = path if os.path.isfile(Path(path) / "tokenizer_config.json") else None
    return model.model_copy(
        update={
            "path": read_adapter(path).named_base(),
            "adapter": path,
            "tokenizer": model.tokenizer or own,
        }
    )
