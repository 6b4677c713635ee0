"""Modules of Triton kernels, where they can be built."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)


def kernel_module(name: str, trial: Callable[[Any], object], *, loss: str) -> ModuleType | None:
    """Return the module of kernels if they run here, which a call shows; else None, with a warning.

    Args:
        name: full name of the module.
        trial: a call of the module's functions with small arguments.
        loss: what the warning says first, such as "the head is slower".
    """
    try:
        module = import_module(name)
        trial(module)
    except Exception as error:  # Triton is missing, or finds no C compiler, or knows no such GPU
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        log.warning("%s: %s", loss, reason)
        return None
    return module
