"""The configuration of a folder with packed weights, as that of the plain model which vLLM serves in its place."""

from __future__ import annotations

from typing import Any


def without_quantization(config: Any) -> Any:
    """Return Transformers' configuration without its ``quantization_config``; it is changed in place.

    vLLM's processes call it by its name. The entry is not None but gone: some of vLLM's models ask whether it is there.
    """
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config
