"""The head of a reward model among the tensors of its adapter's folder, as PEFT has it for sequence classifiers."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_core.outside.json_reader import read_object

from .folder import CLASSIFIER, CONFIG, PREFIX, WEIGHTS


def add_score_head(folder: Path, name: str, weight: Tensor) -> None:
    """Make a PEFT folder that of a sequence classifier; leave the folder of an adapter that is not PEFT's.

    Args:
        name: module of the head in the classifier.
        weight: (1, D).
    """
    path = folder / CONFIG
    if not path.is_file():
        return
    settings = read_object(path, "a PEFT folder's settings")
    whole = [*(settings.get("modules_to_save") or ()), name]
    settings |= {"task_type": CLASSIFIER, "modules_to_save": whole}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tensors = load_file(folder / WEIGHTS)
    tensors[f"{PREFIX}{name}.weight"] = weight.detach().cpu().contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
