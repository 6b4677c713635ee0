"""Environment `shapes`: the policy answers questions about images that are drawn for it."""

from __future__ import annotations

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import ENDLESS_TASKS

from .config import ShapesConfig
from .environment import Shapes


@hookimpl
def rlhf_environments() -> list[Component[Shapes]]:
    return [
        Component(
            name="shapes",
            factory=Shapes,
            config=ShapesConfig,
            summary="answer questions about images: color, number, place and kind of shapes",
            provides=frozenset({ENDLESS_TASKS}),
        )
    ]
