"""``config.toml`` of a folder of completions, which a command that goes on with the folder has to agree with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError
from rlhf_core.config import ResolvedOptions, read_toml, write_toml

NAME = "config.toml"
FREE = re.compile(
    r"output|engines|(select|log|resume)\..*|rollout\.concurrency|engine\.\w+\..*|reward\.\w+\.(timeout_s|on_error|isolate)"
)
"""Options that may change when a folder is gone on with: no completion that is there depends on them."""


def record_config(resolved: ResolvedOptions[Any], folder: Path, *, is_begun: bool) -> None:
    """Write the configuration into a folder.

    Args:
        is_begun: whether the folder has completions, with whose configuration the new one has to agree.

    Raises:
        ConfigError: an option that the completions depend on has changed.
    """
    target = folder / NAME
    part = folder / f"{NAME}.part"
    try:
        write_toml(resolved, part)
        if is_begun and target.exists():
            _compare(target, part, folder)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _compare(recorded: Path, new: Path, folder: Path) -> None:
    before, now = (dict(_leaves(read_toml(path).values)) for path in (recorded, new))
    for option in sorted(before.keys() | now.keys()):
        if before.get(option) != now.get(option) and not FREE.fullmatch(option):
            raise ConfigError(
                f"--resume: {option} is {now.get(option)!r}; the completions in {folder} were made with "
                f"{before.get(option)!r}. Leave it as it was, or choose another --output."
            )


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
