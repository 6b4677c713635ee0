"""The state of a shaper that has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Stateless:
    """Nothing to save: what such a shaper does depends on the batch alone."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state
