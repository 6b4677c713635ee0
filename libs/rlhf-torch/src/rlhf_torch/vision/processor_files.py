"""Files of a model's processor beside an exported model: those of its base, byte for byte but for what options changed.

Transformers has them in several forms: one file for all parts, or one for images, one for videos and one for the
template. Copies keep the form, and parts that no run reads, such as those for videos.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from rlhf_core.outside.json_reader import read_object

_IMAGES, _WHOLE = "preprocessor_config.json", "processor_config.json"
_VIDEOS, _TEMPLATE = "video_preprocessor_config.json", "chat_template.json"
FILES = (_IMAGES, _WHOLE, _VIDEOS, _TEMPLATE)
"""Files that a processor may have."""
_TOKENIZER_TEMPLATE = "chat_template.jinja"
"""File of the tokenizer, which takes the place of ``_TEMPLATE``."""


def copy_processor(source: str, folder: Path, changed: Mapping[str, Any] | None = None) -> None:
    """Write the files of the processor of a folder or hub name into ``folder``, which has the tokenizer already.

    Args:
        changed: options of the image processor with other values than the files have; None: leave the option out.
    """
    for name in FILES:
        found = cached_file(
            source,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found is None or (name == _TEMPLATE and (folder / _TOKENIZER_TEMPLATE).is_file()):
            continue
        target = folder / name
        if Path(found).resolve() != target.resolve():
            shutil.copyfile(found, target)
        if changed and name in (_IMAGES, _WHOLE):
            _change(target, changed)


def has_processor(folder: Path) -> bool:
    """Return whether a folder has a processor's files."""
    return any((folder / name).is_file() for name in (_IMAGES, _WHOLE))


def _change(file: Path, changed: Mapping[str, Any]) -> None:
    values = read_object(file, "an image processor's settings")
    options = values.get("image_processor") if file.name == _WHOLE else values
    if options is None:
        return
    for name, value in changed.items():
        if value is None:
            options.pop(name, None)
        else:
            options[name] = value
    file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
