"""The shape of a language model, read from its config.json, and the numbers of parameters that follow from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""``model_type`` of the dense decoders whose layers are the same: attention, gated feed-forward, two norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder. All counts are of numbers, not bytes."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    """The output head is the embedding table."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Of the attention's output projection."""
    ffn_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalized, by head."""
    head_ranks: int = 1
    """Among which the rows of the output head are shared."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Of keys, and again of values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of all layers that multiply every token: ``L (D (2 Q + 2 K) + 3 D F)``."""
        attention = self.hidden * (2 * self.query_width + 2 * self.kv_width)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def head_weights(self) -> int:
        """Of the output head, ``V D``, or of the part that is here."""
        return -(-self.vocab // self.head_ranks) * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Everything in the layers, norms and biases too."""
        small = 2 * self.hidden
        small += (self.query_width + 2 * self.kv_width) if self.qkv_bias else 0
        small += self.hidden if self.output_bias else 0
        small += 2 * self.ffn + self.hidden if self.ffn_bias else 0
        small += 2 * self.head_dim if self.qk_norm else 0
        return self.layer_weights + self.layers * small

    @property
    def parameters(self) -> int:
        """All: embeddings, layers, last norm, and the head where it is not tied."""
        table = self.vocab * self.hidden
        return self.layer_parameters + self.hidden + table + (0 if self.tied else self.head_weights)

    def part(self, ranks: int) -> ModelShape:
        """Return what one of ``ranks`` has of the model when they share every matrix: a part of the heads, of the
        feed-forward width, and of the output head unless that is the embedding table. Norms and embeddings are whole.

        Source: Shoeybi et al. 2019 (Megatron-LM), arXiv:1909.08053; embeddings as DeepSpeed's AutoTP leaves them.
        """
        return replace(
            self,
            heads=self.heads // ranks,
            kv_heads=self.kv_heads // ranks,
            ffn=-(-self.ffn // ranks),
            head_ranks=1 if self.tied else ranks,
        )


def read_shape(path: Path) -> ModelShape:
    """Read a config.json, or the one in a folder.

    Raises:
        ConfigError: no such file, not JSON, or a model that is not one of ``FAMILIES``.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); expected a model's config.json"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON ({error}); expected a model's config.json") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: expected an object as in a model's config.json")
    return shape_of(config, str(file))


def shape_of(config: Mapping[str, Any], source: str) -> ModelShape:
    """Return the shape that a config.json describes.

    Args:
        source: what to call it in messages.

    Raises:
        ConfigError: another family, a key that is missing, or heads that do not divide.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"{source}: model_type {family!r} is not modeled; rlhf plan knows {', '.join(FAMILIES)}. The run itself "
            "may work all the same."
        )

    def number(key: str) -> int:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{source}: {key} is {value!r}; expected a positive integer")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kv_heads = number("num_key_value_heads") if config.get("num_key_value_heads") else heads
    if heads % kv_heads:
        raise ConfigError(
            f"{source}: {heads} attention heads cannot share {kv_heads} key and value heads"
        )
    biased = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    return ModelShape(
        hidden=hidden,
        layers=number("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=number("head_dim") if config.get("head_dim") else hidden // heads,
        ffn=number("intermediate_size"),
        vocab=number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=biased or family == "qwen2",
        output_bias=biased,
        ffn_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
    )
