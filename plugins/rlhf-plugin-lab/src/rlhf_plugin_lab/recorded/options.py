"""Options of a run by their paths, from ``config.toml``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .problems import Problems

_HEAD = re.compile(
    r"# A run's whole configuration, by (?P<version>[^\n]*?)\. Repeat it: rlhf (?P<command>[\w-]+)"
)


@dataclass(slots=True)
class Options:
    """The configuration of a run."""

    values: dict[str, str] = field(default_factory=dict)
    """Path of each option -> its value as text."""
    version: str = ""
    """Package and version that wrote it; empty: the file does not say it."""
    command: str = ""
    """Name of the command, as ``train``; empty: the file does not say it."""


def read_options(path: Path, problems: Problems) -> Options:
    """Return the options of a run; none, and a note, where the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except OSError as error:
        problems.note(f"{path.name} cannot be read, so options are not known", str(error.strerror))
        return Options()
    except (ValueError, RecursionError) as error:
        problems.note(f"{path.name} is no TOML, so options are not known", str(error))
        return Options()
    head = _HEAD.match(text)
    return Options(
        values=dict(_leaves(tree)),
        version=head["version"] if head else "",
        command=head["command"] if head else "",
    )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value if isinstance(value, str) else json.dumps(value, default=str)
