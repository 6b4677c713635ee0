"""What two processes of one run must agree on before either touches a model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from .errors import FingerprintMismatch
from .plugins import Plugins

LIBRARIES = ("torch", "transformers", "vllm", "deepspeed", "ray")


def fingerprint(plugins: Plugins) -> dict[str, str]:
    """Return component -> ``distribution version -> factory``, and the versions of the libraries that compute."""
    components = {
        entry.qualified: f"{entry.origin} -> {entry.component.factory}"
        for registry in plugins.registries.values()
        for entry in registry
    }
    return components | {name: _version(name) for name in LIBRARIES}


def require_equal(mine: Mapping[str, str], theirs: Mapping[str, str], who: str) -> None:
    """Refuse to go on when ``who`` sees something else than this process.

    Raises:
        FingerprintMismatch: names every difference, here and there.
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
