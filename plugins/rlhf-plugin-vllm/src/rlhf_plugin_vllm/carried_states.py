"""Models whose layers carry a state from token to token: gated linear attention, and short convolutions."""

from __future__ import annotations


def carries_states(model: str, *, trust_remote_code: bool) -> bool:
    """Return whether some layers of a folder or hub name carry a state, by the kinds of layers that its config names.

    vLLM keeps such a state for prompts that begin alike only if it reads prompts in chunks, which it does not on a CPU.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    return any(kind == "linear_attention" or not kind.endswith("attention") for kind in kinds)
