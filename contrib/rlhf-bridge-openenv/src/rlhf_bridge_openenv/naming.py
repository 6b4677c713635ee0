"""Errors that say whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_core import RolloutError


@contextmanager
def named(label: str) -> Iterator[None]:
    """Put a server's label before the errors of what is done with it.

    Raises:
        RolloutError: what was done failed, or there was no connection.
    """
    try:
        yield
    except RolloutError as error:
        raise error.with_text(f"{label}: {error}") from error
    except OSError as error:
        raise RolloutError(
            f"{label}: cannot be reached ({type(error).__name__}: {error})",
            code="environment/unreachable",
        ) from error
