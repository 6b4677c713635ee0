"""Exported configurations in words that Transformers 4 reads too, and servers of its time with it.

Transformers 5 writes rotary embeddings under a key that version 4 does not look for: it would rotate by the default
base without a word. Both versions read the file that is left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from rlhf_core.outside.json_reader import read_object

CONFIG = "config.json"
_LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers that have rotary embeddings of their own, in families that version 4 knows."""


def name_rotation(folder: Path) -> None:
    """Have a folder's ``config.json`` say base and scaling of rotary embeddings under the keys of version 4 too.

    A file that Transformers 5 would read otherwise then stays as it is: of a family that only version 5 has, or one
    whose code is the model's own.
    """
    path = folder / CONFIG
    before = read_object(path, "a model's configuration")
    after = deepcopy(before)
    for part in (after, after.get("text_config")):
        if isinstance(part, dict):
            part.update(_older_keys(part.get("rope_parameters")))
    if after != before and _reads_alike(before, after):
        path.write_text(json.dumps(after, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _reads_alike(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    kind = before.get("model_type")
    if kind not in CONFIG_MAPPING:
        return False
    try:
        # Making a configuration changes the values that it is given.
        one, other = (CONFIG_MAPPING[kind].from_dict(deepcopy(dict(v))) for v in (before, after))
    except Exception:  # whatever a family's checks raise at keys that are not its own
        return False
    same: bool = one.to_dict() == other.to_dict()
    return same


def _older_keys(rope: object) -> dict[str, Any]:
    """Return the keys of version 4; none where it has none for such embeddings."""
    if not isinstance(rope, Mapping):
        return {}
    by_layer = set(rope) == _LAYERS
    rotation = rope["full_attention"] if by_layer else rope
    if "rope_theta" not in rotation:
        return {}
    found = {"rope_theta": rotation["rope_theta"]}
    if by_layer:
        found["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    if (share := rotation.get("partial_rotary_factor")) is not None:
        found["partial_rotary_factor"] = share
    scaling = {key: rotation[key] for key in rotation if key not in found}
    return found if scaling == {"rope_type": "default"} else {**found, "rope_scaling": scaling}
