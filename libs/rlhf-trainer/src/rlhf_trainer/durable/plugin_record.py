"""Record of the plugins, libraries and inputs that took part in a run: ``plugins.json``, and a copy in each checkpoint.

    {"history": [{"from_step": 0, "plugins": {"acme": "rlhf-plugin-acme 1.2"}, "components": {...}}, ...]}

``inputs`` has the digests of data and models in files. A run with environments also has ``environments``: their names
in the run with the names and versions that they have themselves. The history gains an entry when a run goes on with
other plugins, libraries or files; the last entry holds for the present run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import ResumeError
from rlhf_core.fingerprint import LIBRARIES, fingerprint
from rlhf_core.outside.json_reader import BrokenJson, parse_object
from rlhf_core.plugins import Plugins
from rlhf_core.storage.atomic import set_aside
from rlhf_core.storage.writing import write_text_atomically

ABSENT = "not there"

Record = Mapping[str, Mapping[str, str]]
"""``plugins``: name of a plugin or plugin file -> version or hash; ``components``: the result of ``fingerprint``."""

log = logging.getLogger(__name__)


def record_of(
    plugins: Plugins,
    inputs: Mapping[str, str] | None = None,
    environments: Mapping[str, str] | None = None,
) -> Record:
    """Return the record of this process.

    Args:
        inputs: digest of each set and model that is read from files.
        environments: name in the run -> name and version of each environment.
    """
    record = {
        "plugins": dict(plugins.loaded),
        "components": fingerprint(plugins),
        "inputs": dict(inputs or {}),
    }
    return {**record, "environments": dict(environments)} if environments else record


def report_changes(before: Record, now: Record, *, checkpoint: Path, strict: bool) -> None:
    """Log a warning for each plugin, plugin file and library whose version differs from the checkpoint's, and for each
    set and model whose files do.

    Raises:
        ResumeError: there is a difference, and ``strict`` is set.
    """
    changes = list(_changes(before, now))
    if changes and strict:
        raise ResumeError(
            f"--resume.strict: {checkpoint} was made with other plugins, libraries or files than there are now:\n  "
            + "\n  ".join(changes)
            + "\n  Install or put back what it was made with, or resume without --resume.strict.",
            code="resume/plugins-changed",
        )
    for change in changes:
        log.warning("resuming with another version: %s", change)


def append_to_history(path: Path, now: Record, *, step: int) -> None:
    """Add ``now`` to the history at ``path``, unless the last entry says the same."""
    history = _read_history(path)
    if history is None:
        aside = set_aside(path)
        log.warning("%s is no history of plugins; it is kept as %s", path, aside.name)
        history = []
    if history and all(history[-1].get(part) == values for part, values in now.items()):
        return
    history.append({"from_step": step, **now})
    write_text_atomically(path, json.dumps({"history": history}, indent=1, sort_keys=True))


def lost_plugins(path: Path, plugins: Plugins) -> list[str]:
    """Return ``NAME==VERSION`` of each distribution in the last entry at ``path`` that this process lacks."""
    history = _read_history(path)
    recorded = history[-1].get("plugins") if history else None
    if not isinstance(recorded, Mapping):
        return []
    lost = {
        str(origin).replace(" ", "==")
        for name, origin in recorded.items()
        if name not in plugins.loaded and str(origin).count(" ") == 1
    }
    return sorted(requirement for requirement in lost if not requirement.startswith("module=="))


def _changes(before: Record, now: Record) -> Iterator[str]:
    for part, names in (("plugins", None), ("components", LIBRARIES)):
        old, new = before[part], now[part]
        for name in names or sorted({*old, *new}):
            was, is_now = old.get(name, ABSENT), new.get(name, ABSENT)
            if was != is_now:
                yield f"{name}: {was} -> {is_now}"
    inputs = before.get("inputs", {})
    for name, digest in now.get("inputs", {}).items():
        if inputs.get(name, digest) != digest:
            yield f"--{name} has other content: {inputs[name]} -> {digest}"


def _read_history(path: Path) -> list[dict[str, Any]] | None:
    """Return the entries of the history; an empty list when there is no file, None when the file is no history."""
    try:
        history = parse_object(path.read_bytes()).get("history")
    except FileNotFoundError:
        return []
    except (OSError, BrokenJson):
        return None
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        return None
    return history
