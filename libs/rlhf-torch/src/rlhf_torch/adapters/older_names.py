"""Adapters with the names of an older Transformers: version 4.52 moved the language models of image-text models.

Transformers renames the tensors of such a checkpoint as it loads them. PEFT 0.21 does not: it leaves out the factors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from .folder import CONFIG, PREFIX, WEIGHTS, AdapterFolder

_FACTOR = ".lora_"


@contextmanager
def in_own_names(
    folder: AdapterFolder, model: PreTrainedModel
) -> Iterator[tuple[AdapterFolder, Path]]:
    """Return the adapter with the names of a model's modules, and where PEFT reads it: in a copy, if names differ.

    An adapter that fits under neither names is returned as it is.
    """
    names = _renamed(folder, model)
    if names is None:
        yield folder, folder.path
        return
    with tempfile.TemporaryDirectory(prefix="rlhf-adapter-") as made:
        path = Path(made)
        copyfile(folder.path / CONFIG, path / CONFIG)
        tensors = load_file(folder.path / WEIGHTS)
        save_file(
            {f"{PREFIX}{new}": tensors[f"{PREFIX}{old}"] for old, new in names.items()},
            path / WEIGHTS,
            metadata={"format": "pt"},
        )
        shapes = {new: folder.shapes[old] for old, new in names.items()}
        yield replace(folder, shapes=shapes), path


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
