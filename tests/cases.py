"""Cases of a long test: CI runs some of them, `make test-all` all."""

from collections.abc import Iterable

import pytest


def one_in(number: int, cases: Iterable[object], *, first: int = 0) -> list:
    """Return the cases, of which CI runs each ``number``-th, from ``first`` on; the others have the marker matrix."""
    return [
        case if index % number == first else pytest.param(case, marks=pytest.mark.matrix)
        for index, case in enumerate(cases)
    ]
