"""Environment `sorting`: the policy sorts digits by swapping neighbors, a swap in each turn."""

from __future__ import annotations

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import ENDLESS_TASKS

from .environment import Sorting, SortingConfig


@hookimpl
def rlhf_environments() -> list[Component[Sorting]]:
    return [
        Component(
            name="sorting",
            factory=Sorting,
            config=SortingConfig,
            summary="sort digits by swapping neighbors, a swap in each turn",
            provides=frozenset({ENDLESS_TASKS}),
        )
    ]
