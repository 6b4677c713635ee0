"""The released packages of the peers, loaded from ``.peers`` without their dependencies.

``make peers`` unpacks the wheels there. Nothing of it is on ``sys.path``: one finder serves the three packages from the
folder, and a second one gives empty modules for the heavy packages that they import and that the functions compared
here never call. Both finders, and the empty modules, are gone after each load, so that no other test, and no library
that looks for optional packages, can meet them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[2] / ".peers"
VERSIONS = {"openrlhf": "0.11.2", "trl": "1.16.0", "verl": "0.9.1"}
EMPTY = frozenset({
    "accelerate", "aiohttp", "codetiming", "deepspeed", "flash_attn", "hydra", "omegaconf", "orjson", "peft",
    "psutil", "pylatexenc", "ray", "tensordict", "torchdata", "vllm", "wandb",
})  # fmt: skip


ABSENT = "flash_attn.ops"
"""Not even empty: with it verl would take a GPU kernel's log-probs, without it its own."""


def missing() -> list[str]:
    """Return what ``make peers`` would still have to install, as ``name==version``."""
    found = {path.name for path in FOLDER.glob("*.dist-info")}
    return [
        f"{name}=={version}"
        for name, version in VERSIONS.items()
        if f"{name}-{version}.dist-info" not in found
    ]


def load(name: str) -> Any:
    """Return a module of a peer, such as ``verl.trainer.ppo.core_algos``."""
    if name in sys.modules:
        return sys.modules[name]
    with _finders(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, at import
        return importlib.import_module(name)


class _Released(importlib.abc.MetaPathFinder):
    """Finds the three packages in the folder, and nothing else there: the wheels also hold a package ``tests``."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in VERSIONS:
            return importlib.machinery.PathFinder.find_spec(name, [str(FOLDER)])
        return None


class _Inert(type):
    """A class all of whose attributes are again such classes.

    Called with one argument it returns that: what a decorator does, and a gather on one process.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _inert(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs else _inert(cls.__name__)

    def __or__(cls, other: Any) -> Any:  # in annotations
        return other

    __ror__ = __or__


def _inert(name: str) -> Any:
    return _Inert(name, (), {})


class _EmptyModule(ModuleType):
    __path__ = ()  # so that it may have submodules
    __version__ = "999"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _inert(name)


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the heavy packages and all of their submodules, empty."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        # Who only asks whether a package exists (importlib.util.find_spec, as transformers does) hears no.
        importing = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"
        if importing and name.partition(".")[0] in EMPTY and not name.startswith(ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def _finders() -> Iterator[None]:
    released, empty = _Released(), _Empty()
    sys.meta_path.insert(0, released)
    sys.meta_path.append(empty)  # last: what is installed is not replaced
    try:
        yield
    finally:
        sys.meta_path.remove(released)
        sys.meta_path.remove(empty)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _EmptyModule):
                del sys.modules[name]
