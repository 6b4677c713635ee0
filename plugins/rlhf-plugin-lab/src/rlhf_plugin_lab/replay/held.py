"""A checkpoint that stays while a run goes on, which removes its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import parse_object


def held(checkpoint: Path, folder: Path) -> Path:
    """Return a checkpoint with the same files in a folder: links to them, or copies on another disk.

    Raises:
        ConfigError: the run removed it meanwhile.
        OSError: it cannot be copied.
    """
    place = folder / checkpoint.name
    try:
        shutil.copytree(checkpoint, place, copy_function=_link_or_copy)
        names = parse_object((place / "manifest.json").read_bytes())["files"]
        whole = all((place / name).is_file() for name in names)
    except OSError:  # shutil.Error is one
        if (checkpoint / "manifest.json").is_file():
            raise
        whole = False
    if not whole:
        raise ConfigError(
            f"{checkpoint}: expected the checkpoint from which the span is reached; the run, which goes on, has "
            "removed it meanwhile. Choose a later --from, or have the next run keep more with --checkpoint.keep.",
            code="lab/no-checkpoint",
        )
    return place


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)
    return target
