"""Errors that a test expects, by their codes: texts may change, codes do not."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_core.errors import RLHFError


def has_code(code: str) -> Callable[[BaseException], bool]:
    """Return the test of an error's code, for ``pytest.raises(DataError, check=has_code("data/no-rows"))``."""

    def has(error: BaseException) -> bool:
        return isinstance(error, RLHFError) and error.code == code

    has.__qualname__ = f"has_code({code!r})"  # what pytest shows where it is False
    return has
