"""Fingerprint of a process: plugins and library versions, in which all processes of a run must agree."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from .component import Component
from .errors import FingerprintMismatch
from .plugins import Plugins

LIBRARIES = ("torch", "transformers", "vllm", "deepspeed", "ray")


def fingerprint(plugins: Plugins) -> dict[str, str]:
    """Return component -> ``distribution version -> factory``, and library -> version for each of ``LIBRARIES``."""
    components = {
        entry.qualified: f"{entry.origin} -> {_factory_name(entry.component)}"
        for registry in plugins.registries.values()
        for entry in registry
    }
    return components | {name: _version(name) for name in LIBRARIES}


def _factory_name(component: Component[Any]) -> str:
    """Return ``module:name`` of the factory. The text of a function would have its address, another one per process."""
    factory = component.factory
    if isinstance(factory, str):
        return factory
    module = getattr(factory, "__module__", type(factory).__module__)
    return f"{module}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def require_equal(mine: Mapping[str, str], theirs: Mapping[str, str], who: str) -> None:
    """Raise an error if the fingerprint of ``who`` differs from the fingerprint of this process.

    Raises:
        FingerprintMismatch: there is a difference; the message has each, with both values.
    """
    differing = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
    if not differing:
        return
    lines = [f"  {key}: here {mine.get(key)}, {who} {theirs.get(key)}" for key in differing]
    raise FingerprintMismatch(
        f"{who} sees other plugins or versions than this process; install the same on both:\n"
        + "\n".join(lines)
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
