"""Options of a run by their paths, from ``config.toml``, and those that a replay may change: they say what is learned
from samples, not which samples there are."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .problems import Problems

_HEAD = re.compile(
    r"# A run's whole configuration, by (?P<version>[^\n]*?)\. Repeat it: rlhf (?P<command>[\w-]+)"
)
LEARNING = ("algo", "actor", "critic", "reward", "rollout.filters")
"""Sections of options that say what is learned from samples."""
LEARNING_OF_STEP = ("train.batch_size", "train.inner_epochs", "train.max_tokens_per_micro_batch")
_HELD = ("optim", "adapter")
"""Options of a role that a checkpoint holds fast."""


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


def is_within(path: str, sections: Collection[str]) -> bool:
    """Return whether an option is one of these, or in one of these sections."""
    return any(path == section or path.startswith(f"{section}.") for section in sections)


def offered(path: str, value: str, *, has_rollouts: bool) -> bool:
    """Return whether a page offers an option to be changed: a single value that a replay does not refuse by its name.
    Of runs on examples the checkpoint holds all but the section ``actor``.

    Args:
        value: its value in the run, as text; lists are JSON.
    """
    sections = (*LEARNING, *LEARNING_OF_STEP) if has_rollouts else ("actor",)
    held = path.split(".", 1)[-1] in _HELD
    return is_within(path, sections) and not held and not value.startswith("[")
