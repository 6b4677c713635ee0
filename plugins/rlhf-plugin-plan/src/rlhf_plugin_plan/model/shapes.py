"""Shape of a language model, read from its config.json, and the numbers of parameters that follow from the shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import read_object

from .plain_towers import PlainTowerShape
from .seeing import SEEING, text_config, tower_of_config
from .towers import TowerShape

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", *SEEING)
"""Values of ``model_type`` that are modeled: dense decoders with attention, a gated feed-forward part and two norms,
or four; some of them behind a vision tower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Shape of a dense decoder. Axes: D hidden, L layers, Q queries, K keys, F feed-forward, V vocabulary."""

    hidden: int
    """Width of the hidden states, D."""
    layers: int
    """Number of layers, L."""
    heads: int
    """Number of attention heads."""
    kv_heads: int
    """Number of heads of keys, and of values."""
    head_dim: int
    """Width of one head."""
    ffn: int
    """Width of the feed-forward part, F."""
    vocab: int
    """Number of tokens of the vocabulary, V."""
    tied: bool
    """Whether the output head is the embedding table."""
    qkv_bias: bool = False
    """Whether the projections of queries, keys and values have biases."""
    output_bias: bool = False
    """Whether the attention's output projection has a bias."""
    ffn_bias: bool = False
    """Whether the matrices of the feed-forward part have biases."""
    qk_norm: bool = False
    """Whether queries and keys are normalized, each head by itself."""
    norms: int = 2
    """Number of norms of a layer."""
    head_ranks: int = 1
    """Number of ranks that share the rows of the output head."""
    tower: TowerShape | PlainTowerShape | None = None
    """The part that reads pixels; None: the model reads text alone."""

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads, Q."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """``K = kv_heads * head_dim``, the width of all keys; values have the same."""
        return self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Number of the layers' weights that multiply every token: ``L (D (2 Q + 2 K) + 3 D F)``."""
        attention = self.hidden * (2 * self.query_width + 2 * self.kv_width)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def joined_weights(self) -> int:
        """Number of one layer's weights in matrices that read an input of several: ``D (Q + 2 K + 2 F)``."""
        return self.hidden * (self.query_width + 2 * self.kv_width + 2 * self.ffn)

    def factor_weights(self, rank: int, ranks: int = 1) -> float:
        """Return the number of weights on one of T ranks in factors of one rank R beside every matrix of one layer.

        ``R (in + out)`` for each matrix: ``5 D + (Q + F) / T`` inputs and ``2 D + (Q + 2 K + 2 F) / T`` outputs. The T
        ranks share the outputs of the first matrices of attention and feed-forward part, and the inputs of the last.
        """
        inputs = 5 * self.hidden + (self.query_width + self.ffn) / ranks
        outputs = 2 * self.hidden + (self.query_width + 2 * self.kv_width + 2 * self.ffn) / ranks
        return rank * (inputs + outputs)

    @property
    def head_weights(self) -> int:
        """Number of weights of the output head on one rank: ``ceil(V / head_ranks) D``."""
        return -(-self.vocab // self.head_ranks) * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of all layers, norms and biases included."""
        small = self.norms * self.hidden
        small += (self.query_width + 2 * self.kv_width) if self.qkv_bias else 0
        small += self.hidden if self.output_bias else 0
        small += 2 * self.ffn + self.hidden if self.ffn_bias else 0
        small += 2 * self.head_dim if self.qk_norm else 0
        return self.layer_weights + self.layers * small

    @property
    def parameters(self) -> int:
        """Number of all parameters: embeddings, layers, last norm, the head if it is not tied, and the vision tower."""
        table = self.vocab * self.hidden
        head = 0 if self.tied else self.head_weights
        return self.layer_parameters + self.hidden + table + head + self.tower_parameters

    @property
    def tower_parameters(self) -> int:
        """Number of parameters of the vision tower and of a projector beside it, if there is one."""
        return self.tower.parameters if self.tower is not None else 0

    @property
    def projector_parameters(self) -> int:
        """Number of parameters of a projector beside the vision tower, which is trained with the text model."""
        return self.tower.projector_parameters if self.tower is not None else 0

    def part(self, ranks: int) -> ModelShape:
        """Return the shape of one rank's part of the model when ``ranks`` ranks share every matrix.

        A rank has a part of the heads, of the feed-forward width, and of the output head if it is not tied. Norms,
        embeddings and a vision tower are whole.

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
    """Return the shape in a config.json, or in the config.json of a folder.

    Raises:
        ConfigError: the file is missing, is not JSON, or describes a model that is not one of ``FAMILIES``.
    """
    file = path / "config.json" if path.is_dir() else path
    config = read_object(file, "a model's config.json")
    return shape_of(config, str(file))


def shape_of(config: Mapping[str, Any], source: str) -> ModelShape:
    """Return the shape that a config.json describes.

    Args:
        source: name of the config.json for messages.

    Raises:
        ConfigError: the family is not modeled, a key is missing, or the key heads do not divide the attention heads.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"{source}: model_type {family!r} is not modeled; rlhf plan knows {', '.join(FAMILIES)}. The run itself "
            "may work all the same."
        )

    if family in SEEING:
        return _seeing_shape(config, source)

    def number(key: str) -> int:
        return _number(config, key, source)

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kv_heads = number("num_key_value_heads") if config.get("num_key_value_heads") else heads
    if heads % kv_heads:
        raise ConfigError(
            f"{source}: {heads} attention heads cannot share {kv_heads} key and value heads"
        )
    biased = bool(config.get("attention_bias", False)) and family in (
        "llama",
        "qwen3",
        "gemma3_text",
    )
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
        qk_norm=family in ("qwen3", "gemma3_text"),
        norms=4 if family == "gemma3_text" else 2,
    )


def _seeing_shape(config: Mapping[str, Any], source: str) -> ModelShape:
    """Return the shape of an image-text model; its text model is in ``text_config``, or beside ``vision_config``."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise ConfigError(f"{source}: vision_config is {vision!r}; expected an object")
    text = shape_of(text_config(config), source)

    def number(key: str) -> int:
        return _number(vision, key, f"{source}: vision_config")

    return replace(text, tower=tower_of_config(config, number, text.hidden, source))


def _number(config: Mapping[str, Any], key: str, source: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{source}: {key} is {value!r}; expected a positive integer")
    return value
