"""Errors in an episode, with the name of the environment or taskset and the versions before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_core import RolloutError


@contextmanager
def titled(title: str) -> Iterator[None]:
    """Put the title before what the body raises. An error of ours keeps its code.

    Raises:
        RolloutError: the body raised an exception; those of a library are named with their classes.
    """
    try:
        yield
    except RolloutError as error:
        raise RolloutError(f"{title}: {error}", code=error.code) from error
    except Exception as error:  # Packages of others raise anything.
        raise RolloutError(
            f"{title}: {type(error).__name__}: {error}", code="environment/raised"
        ) from error
