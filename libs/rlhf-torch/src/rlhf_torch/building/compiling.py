"""Compilation of tensor functions on first use, whether or not layers are compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


@cache
def compiled(function: F) -> F:
    """Return ``function`` compiled, once for each process; where compiling fails (no C compiler, say) a warning is
    logged and the function runs eagerly."""
    chosen = torch.compile(function)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        nonlocal chosen
        try:
            return chosen(*arguments)
        except TorchDynamoException as error:
            chosen = function
            log.warning(
                "%s is not compiled, so it is slower and needs more memory: %s",
                function.__name__,
                reason_of(error),
            )
            return function(*arguments)

    return call  # type: ignore[return-value]


def reason_of(error: Exception) -> str:
    """Return why something was not compiled: the first line, and where that only says what raised, the second."""
    first, *others = str(error).strip().splitlines()
    return f"{first} {others[0].strip()}" if first.endswith("raised:") and others else first
