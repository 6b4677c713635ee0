"""torch, numpy, and their array types, for modules that every ``rlhf --help`` imports.

``from rlhf_core.lazy import Float, np, torch`` gives type checkers the real libraries. At run time ``torch`` and ``np``
are modules that import torch and numpy at the first use of one of their names. So an algorithm can stand in one file,
its name and options beside its formula, and importing that file costs nothing until the formula is called.

Annotations have to stay unevaluated, which ``from __future__ import annotations`` does. When a type checker at run time
(jaxtyping with beartype) does evaluate them, they are those of the real libraries.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Bool", "Float", "Int", "NDArray", "Shaped", "names_from", "np", "torch"]


class LazyModule(ModuleType):
    """A stand-in for a module, which is imported when one of its attributes is first asked for.

    Each attribute is then kept in the stand-in's ``__dict__``. There Python finds it the next time without a call of
    ``__getattr__``, and ``torch.compile`` finds it as a constant of a plain module. Python's import lock makes the
    first use safe between threads.
    """

    def __getattr__(self, name: str) -> Any:
        # Inspection asks any object for `__path__`, `__wrapped__` and the like; that must not import the library.
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(self.__name__), name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        # A function that is pickled by value, as those of a user's script are, takes its globals along. Unpickling
        # gives it the library itself.
        return importlib.import_module, (self.__name__,)


class LazyArrayType:
    """``Float[torch.Tensor, "b a"]``: a library's array type of that name, made when the annotation is evaluated."""

    def __init__(self, name: str, library: str = "jaxtyping") -> None:
        self._name = name
        self._library = library

    def __getitem__(self, item: Any) -> Any:
        return getattr(importlib.import_module(self._library), self._name)[item]

    def __repr__(self) -> str:
        return f"{self._library}.{self._name}"


def names_from(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package, with which each public name is imported when it is first asked for.

    Args:
        package: the package's ``__name__``.
        modules: public name -> name of the package's module that has it.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find


if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Bool, Float, Int, Shaped
    from numpy.typing import NDArray
else:
    torch = LazyModule("torch")
    np = LazyModule("numpy")
    NDArray = LazyArrayType("NDArray", "numpy.typing")
    Bool, Float, Int, Shaped = map(LazyArrayType, ("Bool", "Float", "Int", "Shaped"))
