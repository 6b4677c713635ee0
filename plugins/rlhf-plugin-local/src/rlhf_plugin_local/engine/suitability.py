"""Settings for which the embedded engine is the right one, by what was measured (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.capabilities import IN_PROCESS
from rlhf_core.contracts import ChoiceSetting, Suitability

LARGEST_MEASURED = 4e9
"""Parameters up to which one GPU was measured beside vLLM: shapes of 0.5, 1.5 and 3 billion, the last with 3.1."""


def suits(setting: ChoiceSetting) -> Suitability:
    """Return how well the engine suits: best on CPUs, and on one GPU for models of the measured sizes."""
    if not setting.accelerators:
        return Suitability(rank=2, reason="on CPUs it computes with the model's own weights")
    if setting.options.get("backend.torch.device") == "cpu":
        return Suitability(rank=2, reason="backend.torch.device is cpu, where it generates too")
    if unmeasured := _unmeasured(setting):
        return Suitability(rank=0, reason=unmeasured)
    return Suitability(
        rank=2,
        reason="of text models of up to 4 billion parameters on one GPU, it was measured as the fastest",
    )


def parameters(config: Mapping[str, Any]) -> float | None:
    """Return about how many parameters a causal language model has; None where its ``config.json`` does not say.

    Matrices alone: L (2 D H d + 2 D K d + 3 E D I) + n V D, with H heads and K key-value heads of size d, E experts of
    width I, and n = 1 for tied heads, else 2.
    """
    text: Mapping[str, Any] = config.get("text_config") or config
    sizes: list[Any] = [
        text.get(key)
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    ]
    experts = text.get("num_experts") or text.get("num_local_experts") or 1
    dense = text.get("intermediate_size")
    width: Any = dense if experts == 1 else text.get("moe_intermediate_size", dense)
    pairs: Any = text.get("num_key_value_heads") or sizes[2]
    given: Any = text.get("head_dim")
    # A head that is not given has the width of its share of the hidden state.
    stated = (*sizes, experts, width, pairs, *([given] if given else []))
    if not all(isinstance(number, int) and number > 0 for number in stated):
        return None
    hidden, layers, heads, vocabulary = sizes
    size = given or hidden // heads
    layer = 2 * hidden * size * (heads + pairs) + 3 * experts * hidden * width
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    return float(layers * layer + (1 if tied else 2) * vocabulary * hidden)


def _unmeasured(setting: ChoiceSetting) -> str | None:
    """Return the reason why measurements do not speak for the engine, or None."""
    if "runtime.name" in setting.components and IN_PROCESS not in setting.provides:
        return "the runtime has processes of its own, in which it shares no weights"
    if setting.options.get("engines", "1") != "1":
        return "several of it share one process and its GPU"
    if setting.options.get("engine.embedded.decode") == "stepwise":
        return "engine.embedded.decode is stepwise, which is slow on a GPU"
    if setting.options.get("backend.torch.compute_dtype") == "float32":
        return "backend.torch.compute_dtype is float32, and it was measured in bfloat16"
    if setting.options.get("rollout.max_staleness", "0") != "0":
        return "rollout.max_staleness asks for generation beside training, which was not measured on one GPU"
    if setting.components.get("actor.adapter"):
        return "with an adapter it was not measured since sequences stay on the GPU, and was far slower before"
    if setting.components.get("model.vision"):
        return "with a model that reads images it was not measured beside another engine"
    if setting.components.get("env.use"):
        return "with environments, whose turns have long histories, it was not measured"
    count = parameters(setting.model)
    if count is None:
        return "the model's size is unknown: its config.json is not on this machine, or does not say it"
    if count > LARGEST_MEASURED:
        return f"with {count / 1e9:.1f} billion parameters it was not measured"
    return None
