"""Base of shapers without state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Stateless:
    """The empty state of a shaper whose result depends on the batch alone."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state
