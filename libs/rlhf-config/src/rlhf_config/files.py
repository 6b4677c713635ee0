"""Configuration files: TOML read as a layer, and a run's whole configuration written as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from rlhf_core import code_reference
from rlhf_core.errors import ConfigError
from rlhf_core.storage.writing import write_text_atomically

from .annotations import NONE
from .layers import MAX_DEPTH, Layer, Origin, leaves, require_shallow
from .problems import flag
from .resolved import ResolvedOptions


def read_toml(path: Path | str, *, defaults: bool = False) -> Layer:
    """Return a TOML file as a layer.

    Args:
        defaults: the file holds defaults that no user has seen, so messages name its options as flags.

    Raises:
        ConfigError: the file cannot be read, or is not TOML; the message has the line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
        require_shallow(values)
    except RecursionError as error:
        raise ConfigError(
            f"-c {path}: expected tables at most {MAX_DEPTH} deep; these are deeper",
            code="config/too-deep",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"-c {path}: cannot read it: {error.strerror}", code="config/unreadable-file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"-c {path}: expected UTF-8 text ({error.reason} at byte {error.start})",
            code="config/not-utf8",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"-c {path}: not valid TOML: {error}", code="config/not-toml") from error
    origins = {
        key: Origin(f"{flag(key)} (default)", is_default=True)
        if defaults
        else Origin(f"{path}: {key}")
        for key, _ in leaves(values)
    }
    return Layer(values, origins)


def write_toml(resolved: ResolvedOptions[Any], path: Path | str) -> None:
    """Write a run's whole configuration; its command with ``-c`` and the file repeats the run.

    The section ``resume`` is left out: it says how a run was started, not what it computes.
    """
    tree = {key: value for key, value in writable(resolved.tree).items() if key != "resume"}
    header = "\n".join(f"# {line}".rstrip() for line in _header(resolved))
    write_text_atomically(Path(path), f"{header}\n\n{tomli_w.dumps(tree)}")


def _header(resolved: ResolvedOptions[Any]) -> Iterator[str]:
    yield (
        f"A run's whole configuration, by rlhf-core {version('rlhf-core')}. "
        f"Repeat it: rlhf {resolved.command} -c THIS_FILE"
    )
    yield "Plugins:"
    chosen = [selection for found in resolved.selections.values() for selection in found]
    origins = {
        selection.registered.plugin: selection.registered.origin
        for selection in chosen
        if selection.registered.distribution is not None
    }
    for plugin, origin in sorted(origins.items()):
        yield f"  {plugin}: {origin}"
    for name in sorted(_code_references(resolved)):
        yield f"  {name}: {code_reference.parse(name).origin}"


def _code_references(resolved: ResolvedOptions[Any]) -> set[str]:
    return {
        name
        for _, value in leaves(resolved.tree)
        for name in (value if isinstance(value, list) else [value])
        if isinstance(name, str) and _is_existing_reference(name)
    }


def _is_existing_reference(name: str) -> bool:
    if not code_reference.is_reference(name):
        return False
    left, colon, _ = name.rpartition(":")
    return bool(colon) and Path(left).is_file() and left.endswith(".py")


def writable(value: Any) -> Any:
    """Return a value as TOML can hold it: None, which TOML lacks, becomes the word ``none``."""
    if value is None:
        return NONE
    if isinstance(value, Mapping):
        return {str(key): writable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [writable(entry) for entry in value]
    return value
