"""Settings for which vLLM is the right engine."""

from __future__ import annotations

from importlib.util import find_spec

from rlhf_core.capabilities import SERVES_ADAPTERS
from rlhf_core.contracts import ChoiceSetting, Suitability


def suits(setting: ChoiceSetting) -> Suitability:
    """Return how well vLLM suits: well on GPUs, if it is installed."""
    if find_spec("vllm") is None:
        return Suitability(rank=None, reason="vLLM is not installed")
    if not setting.accelerators:
        return Suitability(rank=0, reason="no GPU is visible")
    if refused := _refused_adapter(setting):
        return Suitability(rank=None, reason=refused)
    return Suitability(rank=1, reason="it is made for GPUs")


def _refused_adapter(setting: ChoiceSetting) -> str | None:
    """Return why the engine would refuse the run's adapter, as ``arguments`` does once options are validated."""
    names = [name.rpartition(":")[2] for name in setting.components.get("actor.adapter", ())]
    is_merged = any(setting.options.get(f"actor.{name}.serve") == "merged" for name in names)
    if not names or is_merged or SERVES_ADAPTERS not in setting.needs:
        return None
    if setting.options.get("model.dtype") == "bfloat16":
        return None
    return "on a GPU it serves adapters in 16 bits only, and model.dtype is not bfloat16"
