"""Layers of a tower behind the one whose features the text model reads: a checkpoint has them, and vLLM makes none.

The trainer has them as Transformers does, and never changes them but by weight decay, as no gradient reaches them.
"""

from __future__ import annotations

import re
from typing import Any

TOWER = re.compile(
    r"\bvision_tower\.(?:vision_model\.)?(?:encoder\.layers\.(\d+)|post_layernorm)\."
)
"""Names of the weights of a tower's layers, and of the norm behind the last one."""


class UnreadLayers:
    """The weights of a tower that no feature depends on.

    Args:
        config: a model's configuration as Transformers has it; without a ``vision_feature_layer`` no weight is unread.
    """

    def __init__(self, config: Any) -> None:
        self._num_read: int | None = None
        chosen = getattr(config, "vision_feature_layer", None)
        if chosen is not None:
            layers = int(config.vision_config.num_hidden_layers)
            each = [chosen] if isinstance(chosen, int) else chosen
            # State 0 is what the first layer reads, so state -1 is behind the last layer.
            self._num_read = max(one if one >= 0 else layers + 1 + one for one in each)

    def has(self, name: str) -> bool:
        """Return whether a weight is of a layer behind the last one that is read, or of the norm behind all layers."""
        found = TOWER.search(name)
        if self._num_read is None or found is None:
            return False
        return found[1] is None or int(found[1]) >= self._num_read
