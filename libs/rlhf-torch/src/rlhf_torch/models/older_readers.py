"""Exported files in words that Transformers 4 reads too, and servers of its time with it.

Transformers 5 writes classes of tokenizers and forms of special tokens that version 4 refuses, and rotary embeddings
under a key that it does not look for: it would rotate by the default base without a word. Both versions read the files
that these functions leave.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.outside.json_reader import read_object

TOKENIZER, CONFIG = "tokenizer_config.json", "config.json"
_CLASS, _OLDER_CLASS = "TokenizersBackend", "PreTrainedTokenizerFast"
_TOKENS, _OLDER_TOKENS = "extra_special_tokens", "additional_special_tokens"
_NAMED = "model_specific_special_tokens"
"""Tokens with names of their own, such as ``image_token``, which version 4 has in an object under ``_TOKENS``."""
_LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers that have rotary embeddings of their own, in families that version 4 knows."""


def name_tokenizer(folder: Path) -> None:
    """Have the settings of a folder's tokenizer name its class and its special tokens as version 4 does."""
    path = folder / TOKENIZER
    if not path.is_file():
        return
    values = read_object(path, "a tokenizer's settings")
    if values.get("tokenizer_class") == _CLASS:
        values["tokenizer_class"] = _OLDER_CLASS
    if isinstance(values.get(_TOKENS), list) and _OLDER_TOKENS not in values:
        values[_OLDER_TOKENS] = values.pop(_TOKENS)
    if isinstance(named := values.get(_NAMED), dict) and _TOKENS not in values:
        values[_TOKENS] = named
    _write(path, values)


def name_rotation(folder: Path) -> None:
    """Have a folder's ``config.json`` say base and scaling of rotary embeddings under the keys of version 4 too."""
    path = folder / CONFIG
    values = read_object(path, "a model's configuration")
    for part in (values, values.get("text_config")):
        if isinstance(part, dict):
            part.update(_older_keys(part.get("rope_parameters")))
    _write(path, values)


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


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
