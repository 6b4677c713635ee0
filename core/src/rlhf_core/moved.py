"""Old names of modules that have moved to packages of their own, which work for one release.

An import of an old name gives the module under its new name, the same object, and warns once for each place that
imports it. What is listed was public; other modules moved without notice. ``moved_package`` does the same for a
package of a plugin that has become a part of another.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "rlhf_core.config": "rlhf_config",
    "rlhf_core.data": "rlhf_data",
    "rlhf_core.environments.external": "rlhf_core.contracts.external",
    "rlhf_core.episodes": "rlhf_episodes",
    "rlhf_core.inference": "rlhf_trainer.inference",
    "rlhf_core.learning.process": "rlhf_trainer.learning.process",
    "rlhf_core.processes.kept": "rlhf_guard.processes.kept",
    "rlhf_core.processes.program": "rlhf_guard.processes.program",
    "rlhf_core.processes.variables": "rlhf_guard.processes.variables",
    "rlhf_core.rollouts.worker": "rlhf_trainer.rollouts.worker",
    "rlhf_core.runs": "rlhf_trainer.runs",
    "rlhf_core.testing": "rlhf_testing",
    "rlhf_core.weights": "rlhf_weights",
}
"""Old name of a module, or of a package with all that is below it -> its new name."""

_CORRECTIONS = "rlhf_plugin_algorithms.corrections"
MOVED_NAMES = {
    ("rlhf_core.contracts", "LinkedEngine"): "rlhf_weights",
    ("rlhf_core.math", "ImportanceWeights"): f"{_CORRECTIONS}.weighting",
    ("rlhf_core.math", "importance_metrics"): f"{_CORRECTIONS}.weighting",
    ("rlhf_core.math", "importance_weights"): f"{_CORRECTIONS}.importance",
}
"""Module and name of what left a module that stayed -> the module that has it now."""

_FOLDERS = {old.rpartition(".")[0] for old in MOVED} - {"rlhf_core"}
"""Packages of which nothing is left but the way to old names."""

_PACKAGES: dict[str, tuple[str, ...]] = {}
"""Old name of a package that is a part of others now -> the packages among which its modules are, in their order."""


class MovedModules:
    """Finder of modules by their old names, for ``sys.meta_path``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of an old name is loaded; None for all others, which Python's own finders know.

        Raises:
            ModuleNotFoundError: the package that has the module now is not installed.
        """
        top, dot, _ = name.partition(".")
        if not dot or (top != "rlhf_core" and top not in _PACKAGES):
            return None
        if name in _FOLDERS:
            return ModuleSpec(name, _EmptyPackage(), is_package=True)
        new = new_name(name)
        if new is None:
            return None
        _require(name, new)
        if top not in _PACKAGES:  # such a package has warned already
            warn_of_old_name(f"{name} is {new}", level=2)  # frames of imports do not count
        return ModuleSpec(name, _Moved(new))


def new_name(old: str) -> str | None:
    """Return the new name of a module that has moved, else None."""
    for known, new in MOVED.items():
        if old == known or old.startswith(f"{known}."):
            return new + old.removeprefix(known)
    package, _, rest = old.partition(".")
    found = (f"{home}.{rest}" for home in _PACKAGES.get(package, ()) if rest)
    return next((name for name in found if importlib.util.find_spec(name) is not None), None)


def moved_package(old: str, *homes: str, **folders: str) -> None:
    """Let the modules of a package be found that are parts of others now, and warn of the old name, once.

    The old package's ``__init__`` calls it, and holds nothing else but what a plugin's module needs.

    Args:
        old: name of the package.
        homes: packages among which its modules are now.
        folders: folder below the old package -> the package that it is now.
    """
    _PACKAGES[old] = homes
    MOVED.update({f"{old}.{folder}": new for folder, new in folders.items()})
    warn_of_old_name(f"what {old} had is in {', '.join([*homes, *folders.values()])}", level=3)


def moved_name(module: str, name: str) -> Any:
    """Return what a module had under a name, for its ``__getattr__``.

    Raises:
        AttributeError: it never had such a name.
    """
    new = MOVED_NAMES.get((module, name))
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _require(f"{module}.{name}", new)
    warn_of_old_name(f"{module}.{name} is {new}.{name}", level=3)
    return getattr(importlib.import_module(new), name)


def warn_of_old_name(moved: str, *, level: int) -> None:
    """Warn of a name that something had; ``moved`` says where it is, ``level`` is the caller's ``stacklevel``."""
    ending = f"{moved} now; the old name ends with the next minor version"
    warnings.warn(ending, DeprecationWarning, stacklevel=level + 1)


def _require(old: str, new: str) -> None:
    """Refuse an old name where the package that has it now is not installed."""
    package = new.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        distribution = package.replace("_", "-")
        raise ModuleNotFoundError(
            f"{old} is {new} now, of the package {distribution}, which is not installed.\n"
            f"  pip install {distribution}",
            name=old,
        )


class _Moved(Loader):
    """Loader that gives the module of the new name, unchanged."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._new)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # The import system has put the old name's there.


class _EmptyPackage(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Let old names be imported in this process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        # First: a submodule of a moved package would else be loaded a second time, by the folder of its parent.
        sys.meta_path.insert(0, MovedModules())
