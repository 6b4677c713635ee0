"""Where ours does not return what a peer returns, on purpose: one entry each, and each is tested.

An entry is a function of ``agreeing``: False gives an input on which the two differ, True one on which they agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .pairs import EXACT, Both


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One intended difference."""

    peer: str
    function: str
    """Of the peer, below its package."""
    ours: str
    """Below our packages."""
    what: str
    why: str
    compute: Callable[[bool], Both]
    tolerance: float
    """Within which they agree where they should."""


DIFFERENCES: list[Difference] = []


def difference(
    peer: str, function: str, ours: str, *, what: str, why: str, tolerance: float = EXACT
) -> Callable[[Callable[[bool], Both]], Callable[[bool], Both]]:
    """Register an intended difference."""

    def register(compute: Callable[[bool], Both]) -> Callable[[bool], Both]:
        DIFFERENCES.append(
            Difference(
                peer=peer,
                function=function,
                ours=ours,
                what=what,
                why=why,
                compute=compute,
                tolerance=tolerance,
            )
        )
        return compute

    return register
