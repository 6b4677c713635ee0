"""Registration of the training backend ``deepspeed``: one object per rank, ZeRO stages 0 to 3."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import (
    BACKEND_SEES,
    KEEPS_REFERENCE,
    REPLAYS_ROUTES,
    SEVERAL_RANKS,
    UNDOES_UPDATES,
)

from .config import DeepSpeedConfig


@hookimpl
def rlhf_train_backends() -> list[Component[Any]]:
    """Return the ``deepspeed`` component; its factory is imported when a run selects it."""
    return [
        Component(
            name="deepspeed",
            config=DeepSpeedConfig,
            factory="rlhf_plugin_deepspeed.backend:DeepSpeedBackend",
            summary="trains on any number of ranks; ZeRO shares optimizer, gradients and weights among them",
            provides=frozenset(
                {SEVERAL_RANKS, BACKEND_SEES, KEEPS_REFERENCE, REPLAYS_ROUTES, UNDOES_UPDATES}
            ),
            extra="deepspeed",
        )
    ]
