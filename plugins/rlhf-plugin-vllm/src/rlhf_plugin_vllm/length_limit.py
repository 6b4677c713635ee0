"""Models that vLLM computes otherwise than a trainer when a sequence grows beyond a length.

Some rotate all tokens anew beyond it, which no sampler can do: vLLM takes one set of frequencies for all sequences
("longrope": the long factors, "dynamic": those of the longest sequence that it serves), where a training backend has
those of each sequence's own length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlhf_core import ConfigError

WIDER_WINDOWS = frozenset({"cohere2"})
"""Model types whose window is a token longer in vLLM 0.32 than in Transformers."""


def check_length(config: Any, max_length: int, model: str) -> None:
    """Refuse sequences that vLLM would rotate by other frequencies than they are trained with, or see through another
    window.

    Args:
        config: of the language model, as Transformers has it.

    Raises:
        ConfigError: sequences of ``max_length`` tokens are longer than those whose frequencies are constant, or than
            the window.
    """
    window = getattr(config, "sliding_window", None)
    if config.model_type in WIDER_WINDOWS and window is not None and max_length > window:
        raise ConfigError(
            f"model {model}: a token sees {window} tokens in its layers with a window, and one more in vLLM 0.32; this "
            f"run allows sequences of {max_length}. Set --rollout.max_length {window} and a smaller "
            "--data.max_prompt_tokens (for evaluations eval.max_length); or choose --engine embedded.",
            code="vllm/window",
        )
    for limit in _limits(config):
        if max_length > limit:
            raise ConfigError(
                f"model {model}: the frequencies of its rotary embedding change when a sequence is longer than {limit} "
                f"tokens, also for the tokens before; this run allows {max_length}. Tokens would be sampled by other "
                f"frequencies than those that they are trained with. Set --rollout.max_length {limit} and a smaller "
                "--data.max_prompt_tokens (for evaluations eval.max_length); or, with longrope, give short_factor and "
                "long_factor in the model's config.json the same values, those of long_factor.",
                code="model/rope-changes",
            )


def _limits(config: Any) -> Iterator[int]:
    """The lengths up to which frequencies are constant, of each kind of layer."""
    options = getattr(config, "rope_parameters", None) or {}
    for each in [options, *(part for part in options.values() if isinstance(part, dict))]:
        kind = each.get("rope_type", "default")
        if kind == "longrope" and each["short_factor"] != each["long_factor"]:
            yield int(each["original_max_position_embeddings"])
        elif "dynamic" in kind:
            yield int(each.get("max_trained_positions") or config.max_position_embeddings)
