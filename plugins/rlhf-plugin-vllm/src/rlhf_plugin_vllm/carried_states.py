"""Models whose layers carry a state from token to token: gated linear attention, and short convolutions."""

from __future__ import annotations

from rlhf_core import ConfigError


def require_no_states(model: str, *, trust_remote_code: bool) -> None:
    """Refuse a folder or hub name some of whose layers carry a state, by the kinds of layers that its config names.

    With vLLM 0.32 on a CPU log-probs of such models were off by tenths of a nat, with weights equal to the bit.

    Raises:
        ConfigError: there is such a layer.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    states = (
        kind for kind in kinds if kind == "linear_attention" or not kind.endswith("attention")
    )
    if (kind := next(states, None)) is not None:
        raise ConfigError(
            f"model {model}: layers of the kind {kind} carry a state from token to token. In models with such layers "
            "vLLM's log-probs on a CPU differ from the trainer's by tenths of a nat. Choose --engine embedded, or a "
            "GPU.",
            code="vllm/attention",
        )
