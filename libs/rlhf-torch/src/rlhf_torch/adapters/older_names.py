"""Adapters with the names of an older Transformers: version 4.52 moved the language models of image-text models.

Transformers renames the tensors of such a checkpoint as it loads them. PEFT 0.21 does not: it leaves out the factors.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from .fitting import pattern_value
from .folder import CONFIG, PREFIX, WEIGHTS, AdapterFolder
from .stacks import TARGETS

_FACTOR = ".lora_"


def in_names_of(model: PreTrainedModel, folder: AdapterFolder) -> AdapterFolder:
    """Return the adapter with the names that a model's modules have: of its tensors, and of the modules in its config.

    An adapter that fits under neither names is returned as it is.
    """
    names = _renamed(folder, model)
    if names is None:
        return folder
    owners = {
        old.partition(_FACTOR)[0]: new.partition(_FACTOR)[0]
        for old, new in names.items()
        if _FACTOR in old
    }
    config = dict(folder.config)
    if not config.get(TARGETS):
        config["target_modules"] = sorted(owners.values())
    for key in ("rank_pattern", "alpha_pattern"):
        found = {new: pattern_value(config.get(key), old, None) for old, new in owners.items()}
        if config.get(key):
            config[key] = {
                re.escape(new): value for new, value in found.items() if value is not None
            }
    return replace(
        folder,
        config=config,
        shapes={new: folder.shapes[old] for old, new in names.items()},
        older={new: old for old, new in names.items()},
    )


@contextmanager
def in_own_names(
    folder: AdapterFolder, model: PreTrainedModel
) -> Iterator[tuple[AdapterFolder, Path]]:
    """Return ``in_names_of`` the model, and where PEFT reads it: in a copy, if names differ."""
    named = in_names_of(model, folder)
    if not named.older:
        yield named, folder.path
        return
    with tempfile.TemporaryDirectory(prefix="rlhf-adapter-") as made:
        path = Path(made)
        (path / CONFIG).write_text(json.dumps(dict(named.config)), encoding="utf-8")
        tensors = load_file(folder.path / WEIGHTS)
        save_file(
            {f"{PREFIX}{name}": tensors[named.name_in_file(name)] for name in named.shapes},
            path / WEIGHTS,
            metadata={"format": "pt"},
        )
        yield named, path


def _renamed(folder: AdapterFolder, model: PreTrainedModel) -> dict[str, str] | None:
    """Return the model's names of an adapter's tensors; None: they have them, or fit under no names."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    modules = dict(model.named_modules())
    owners = {name: name.partition(_FACTOR)[0] for name in folder.shapes if _FACTOR in name}
    if all(owner in modules for owner in owners.values()):
        return None
    mapping = get_model_conversion_mapping(model) or ()
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    names: dict[str, str] = {}
    for name in folder.shapes:
        owner = owners.get(name)
        if owner is None:
            names[name] = rename_source_key(name, renamings, [])[0]
            continue
        new = rename_source_key(f"{owner}.weight", renamings, [])[0].removesuffix(".weight")
        if new not in modules:
            return None
        names[name] = new + name.removeprefix(owner)
    return names
