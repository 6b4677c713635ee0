"""Errors in an episode, with the name of the environment or taskset and the versions before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_core import RolloutError, first_error


@contextmanager
def titled(title: str) -> Iterator[None]:
    """Put the title before what the body raises. An error of ours keeps its code.

    Raises:
        RolloutError: the body raised an exception; those of a library are named with their classes.
    """
    try:
        yield
    except Exception as error:  # Packages of others raise anything.
        first = first_error(error)
        if isinstance(first, RolloutError):
            raise RolloutError(f"{title}: {first}", code=first.code) from error
        raise RolloutError(
            f"{title}: {type(first).__name__}: {first}", code="environment/raised"
        ) from error
