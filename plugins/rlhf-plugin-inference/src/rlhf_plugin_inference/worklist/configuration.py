"""``config.toml`` of a folder, which a command that goes on with the folder has to agree with."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_config import ResolvedOptions, read_toml, write_toml
from rlhf_core import ConfigError
from rlhf_core.storage import made_whole

log = logging.getLogger(__name__)

NAME = "config.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingOn:
    """Rules of a command by which it goes on with a folder."""

    free: re.Pattern[str]
    """Options that may change: nothing that is there depends on them."""
    contents: str
    """Name of what the folder holds, in the plural, for messages."""
    label: str = ""
    """Text before a message, such as the option that goes on."""
    way_out: str
    """Other ways out for the user, for messages."""


def record_config(
    resolved: ResolvedOptions[Any], folder: Path, rules: GoingOn, *, is_begun: bool
) -> None:
    """Write the configuration into a folder, and log its warnings.

    Args:
        is_begun: whether the folder has results, with whose configuration the new one has to agree.

    Raises:
        ConfigError: an option that the results depend on has changed, or nothing says what they were made with.
    """
    target = folder / NAME
    if is_begun and not target.exists():
        raise ConfigError(
            f"{rules.label}{target} is missing, so nothing says with which options the {rules.contents} in {folder} "
            f"were made. Put it back, or {rules.way_out}.",
            code="resume/no-configuration",
        )
    for caution in resolved.cautions:
        log.warning("%s", caution)
    with made_whole(target) as new:
        write_toml(resolved, new)
        if is_begun:
            _compare(target, new, folder, rules)


def _compare(recorded: Path, new: Path, folder: Path, rules: GoingOn) -> None:
    before, now = (dict(_leaves(read_toml(path).values)) for path in (recorded, new))
    for option in sorted(before.keys() | now.keys()):
        if before.get(option) != now.get(option) and not rules.free.fullmatch(option):
            raise ConfigError(
                f"{rules.label}{option} is {now.get(option)!r}; the {rules.contents} in {folder} were made with "
                f"{before.get(option)!r}. Leave it as it was, or {rules.way_out}.",
                code="resume/option-changed",
            )


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
