"""Settings for which vLLM is the right engine."""

from __future__ import annotations

from importlib.util import find_spec

from rlhf_core.contracts import ChoiceSetting, Suitability


def suits(setting: ChoiceSetting) -> Suitability:
    """Return how well vLLM suits: well on GPUs, if it is installed."""
    if find_spec("vllm") is None:
        return Suitability(rank=None, reason="vLLM is not installed")
    if not setting.accelerators:
        return Suitability(rank=0, reason="no GPU is visible")
    return Suitability(rank=1, reason="it is made for GPUs")
