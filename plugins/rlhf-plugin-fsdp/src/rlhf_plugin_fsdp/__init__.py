"""Registration of the training backend ``fsdp``: one object per rank, weights and training state fully sharded."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import (
    BACKEND_SEES,
    FOUR_BIT_BASE,
    KEEPS_REFERENCE,
    REPLAYS_ROUTES,
    SEVERAL_RANKS,
    UNDOES_UPDATES,
    UNSHARED_STATE,
)

from .config import FsdpConfig


@hookimpl
def rlhf_train_backends() -> list[Component[Any]]:
    """Return the ``fsdp`` component; its factory is imported when a run selects it."""
    return [
        Component(
            name="fsdp",
            config=FsdpConfig,
            factory="rlhf_plugin_fsdp.backend:FsdpBackend",
            summary="trains on any number of ranks; torch shards weights, gradients and optimizer among them",
            provides=frozenset(
                {SEVERAL_RANKS, BACKEND_SEES, KEEPS_REFERENCE, REPLAYS_ROUTES, UNDOES_UPDATES}
            ),
            conflicts=frozenset({UNSHARED_STATE, FOUR_BIT_BASE}),
        )
    ]
