"""Shape of a language model, read from its config.json, and the numbers of parameters that follow from the shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import read_object

from . import experts, measured, recurrent
from .experts import ExpertsShape
from .measured import CountedTower, Measured, counted
from .measured_towers import MeasuredTower
from .recurrent import RecurrentShape
from .towers import COUNTED_TOWERS, QWEN, TowerShape, text_config, tower_of

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3_text",
    *dict.fromkeys((*experts.FAMILIES, *recurrent.FAMILIES)),
    *QWEN,
    *COUNTED_TOWERS,
)
"""Values of ``model_type`` that are modeled: decoders with attention, a gated feed-forward part and two norms, or four;
some of them with experts, with linear attention in most layers, or behind a vision tower."""
_BIASED = ("llama", "qwen3", "gemma3_text", "qwen3_moe")
"""Families in which ``attention_bias`` gives all projections of attention a bias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Shape of a decoder. Axes: D hidden, L layers, Q queries, K keys, F feed-forward, V vocabulary."""

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
    gated: bool = False
    """Whether the attention's output is multiplied by a gate of its own, which the projection of queries makes."""
    float_norms: bool = False
    """Whether norms keep what they normalize in float32, also with bfloat16 parameters."""
    experts: ExpertsShape | None = None
    """The experts of the feed-forward parts; None: the model is dense."""
    recurrent: RecurrentShape | None = None
    """Layers of linear attention; None: all layers have attention."""
    tower: TowerShape | None = None
    """The part that reads pixels, in closed form; None: the model reads text alone, or the part is counted."""
    counted_tower: CountedTower | None = field(default=None, compare=False)
    """The part that reads pixels, without numbers; None: there is none, or it has closed forms."""
    measured: Measured | None = field(default=None, compare=False)
    """The model without numbers, of a family without closed forms; None: numbers follow from those above."""

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads, Q."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """``K = kv_heads * head_dim``, the width of all keys; values have the same."""
        return self.kv_heads * self.head_dim

    @property
    def attention_layers(self) -> int:
        """Number of layers with attention, which have keys and values of all tokens."""
        return self.layers - (len(self.recurrent.layers) if self.recurrent else 0)

    @property
    def dense_layers(self) -> int:
        """Number of layers with a feed-forward part that computes every token."""
        return len(self.experts.dense) if self.experts else self.layers

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers

    def is_recurrent(self, layer: int) -> bool:
        """Return whether a layer has linear attention."""
        return self.recurrent is not None and layer in self.recurrent.layers

    def experts_in(self, layer: int) -> ExpertsShape | None:
        """Return the experts of a layer; None: it has none."""
        return None if self.experts is None or layer in self.experts.dense else self.experts

    @property
    def linear_weights(self) -> int:
        """Number of the layers' weights that multiply every token: ``L (D (2 Q + 2 K) + 3 D F)`` in a dense model."""
        if self.measured is not None:
            return self.measured.counts.linear_weights
        queries = (3 if self.gated else 2) * self.query_width
        total = self.attention_layers * self.hidden * (queries + 2 * self.kv_width)
        total += self.dense_layers * 3 * self.hidden * self.ffn
        if self.experts is not None:
            total += self.expert_layers * self.experts.beside(self.hidden)
        if self.recurrent is not None:
            total += len(self.recurrent.layers) * self.recurrent.weights(self.hidden)
        return total

    @property
    def layer_weights(self) -> int:
        """Number of the layers' weights in matmuls: ``linear_weights``, and all experts."""
        stacked = self.expert_layers * self.experts.stacked(self.hidden) if self.experts else 0
        return self.linear_weights + stacked

    @property
    def active_weights(self) -> int:
        """Number of the layers' weights that multiply one token: ``linear_weights``, and the experts of the token."""
        active = self.expert_layers * self.experts.active(self.hidden) if self.experts else 0
        return self.linear_weights + active

    def read_weights(self, tokens: int) -> int:
        """Return the number of the layers' weights that a pass over so many tokens reads, at most."""
        read = self.expert_layers * self.experts.read(self.hidden, tokens) if self.experts else 0
        return self.linear_weights + read

    @property
    def joined_weights(self) -> int:
        """Number of the layers' weights in matrices that read an input of several: ``L D (Q + 2 K + 2 F)`` in a dense
        model. Those of linear attention and of experts are not joined."""
        if self.measured is not None:
            return self.measured.counts.joined_weights
        queries = (2 if self.gated else 1) * self.query_width
        attention = self.attention_layers * (queries + 2 * self.kv_width)
        return self.hidden * (attention + self.dense_layers * 2 * self.ffn)

    @property
    def route_bytes(self) -> int:
        """Bytes of the routes of one token to experts, in all layers; 0 for a dense model."""
        return self.expert_layers * self.experts.route_bytes if self.experts else 0

    def state_bytes(self, width: int) -> int:
        """Return the bytes of one sequence's states in all layers of linear attention; 0 without such.

        Args:
            width: bytes of one element of a matmul's input.
        """
        if self.measured is not None:
            exact, others = self.measured.state_numbers
            return 4 * exact + width * others
        if self.recurrent is None:
            return 0
        return len(self.recurrent.layers) * self.recurrent.state_bytes(width)

    @property
    def carries_state(self) -> bool:
        """Whether something but keys and values goes from token to token, so that prompts are not shared."""
        return self.state_bytes(2) > 0

    @property
    def kv_numbers(self) -> int:
        """Number of one token's keys and values in all layers: ``2 L K``."""
        if self.measured is not None:
            return self.measured.counts.keys
        return 2 * self.attention_layers * self.kv_width

    @property
    def pair_numbers(self) -> int:
        """Number of products of a query with a key in all layers, and as many with a value: ``L Q``."""
        if self.measured is not None:
            return self.measured.counts.queries
        return self.query_width * self.attention_layers

    def factor_weights(self, rank: int, ranks: int = 1) -> float:
        """Return the number of weights on one of T ranks in factors of one rank R beside every matrix of one layer.

        ``R (in + out)`` for each matrix: ``5 D + (Q + F) / T`` inputs and ``2 D + (Q + 2 K + 2 F) / T`` outputs. The T
        ranks share the outputs of the first matrices of attention and feed-forward part, and the inputs of the last.
        Experts have none, and a layer of linear attention is taken for one of attention.
        """
        ffn = 0 if self.experts else self.ffn
        parts = (3, 1) if self.experts else (5, 2)
        inputs = parts[0] * self.hidden + (self.query_width + ffn) / ranks
        outputs = parts[1] * self.hidden + (self.query_width + 2 * self.kv_width + 2 * ffn) / ranks
        return rank * (inputs + outputs)

    @property
    def head_weights(self) -> int:
        """Number of weights of the output head on one rank: ``ceil(V / head_ranks) D``."""
        return -(-self.vocab // self.head_ranks) * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of all layers, norms and biases included."""
        if self.measured is not None:
            return self.measured.counts.layer_parameters
        small = (self.query_width + 2 * self.kv_width) if self.qkv_bias else 0
        small += self.hidden if self.output_bias else 0
        small += 2 * self.ffn + self.hidden if self.ffn_bias else 0
        small += 2 * self.head_dim if self.qk_norm else 0
        total = self.layer_weights + self.attention_layers * small
        total += self.layers * self.norms * self.hidden
        if self.recurrent is not None:
            total += len(self.recurrent.layers) * self.recurrent.small
        return total

    @property
    def parameters(self) -> int:
        """Number of all parameters: embeddings, layers, last norm, the head if it is not tied, and the vision tower."""
        if self.measured is not None:
            return self.measured.counts.parameters
        table = self.vocab * self.hidden
        head = 0 if self.tied else self.head_weights
        return self.layer_parameters + self.hidden + table + head + self.tower_parameters

    @property
    def tower_parameters(self) -> int:
        """Number of parameters of the vision tower and of a projector beside it, if there is one."""
        if self.measured is not None:
            return self.measured.counts.tower
        tower = self.tower or self.counted_tower
        return tower.parameters if tower is not None else 0

    @property
    def vision(self) -> TowerShape | MeasuredTower | None:
        """The tower whose passes are predicted, by closed forms or counted; None: there is none, or no form of its
        images is known."""
        found = self.measured or self.counted_tower
        return self.tower if found is None else found.tower

    @property
    def missing(self) -> str | None:
        """Sentence that names the package without which encoders are not counted; None: all parts are."""
        return None if self.measured is None else self.measured.missing

    @property
    def projector_parameters(self) -> int:
        """Number of parameters of a projector beside the vision tower, which is trained with the text model."""
        if self.measured is not None:
            return self.measured.counts.projector
        return self.counted_tower.projector_parameters if self.counted_tower is not None else 0

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
    if family in (*measured.TEXT, *measured.SEEING):
        return _measured_shape(config, source)
    if family not in FAMILIES:
        raise ConfigError(
            f"{source}: model_type {family!r} is not modeled; rlhf plan knows "
            f"{', '.join((*FAMILIES, *measured.TEXT, *measured.SEEING))}. The run itself "
            "may still work.",
            code="plan/unknown-model",
        )
    if family in (*QWEN, *COUNTED_TOWERS):
        return _seeing_shape(config, source)
    number = partial(_number, config, source)
    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kv_heads = number("num_key_value_heads") if config.get("num_key_value_heads") else heads
    if heads % kv_heads:
        raise ConfigError(
            f"{source}: {heads} attention heads cannot share {kv_heads} key and value heads",
            code="plan/unequal-heads",
        )
    biased = bool(config.get("attention_bias", False)) and family in _BIASED
    layers = number("num_hidden_layers")
    mixture = experts.experts_of(config, number, layers)
    has_dense = mixture is None or bool(mixture.dense)
    is_hybrid = family in recurrent.FAMILIES
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=number("head_dim") if config.get("head_dim") else hidden // heads,
        ffn=number("intermediate_size") if has_dense else number(experts.WIDTHS[family]),
        vocab=number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=biased
        or family == "qwen2"
        or (family == "qwen2_moe" and config.get("qkv_bias", True)),
        output_bias=biased,
        ffn_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", "qwen3_moe", "gemma3_text") or is_hybrid,
        norms=4 if family == "gemma3_text" else 2,
        gated=is_hybrid,
        float_norms=is_hybrid,
        experts=mixture,
        recurrent=recurrent.recurrent_of(config, number, layers),
    )


def _measured_shape(config: Mapping[str, Any], source: str) -> ModelShape:
    """Return the shape of a family without closed forms, whose numbers are counted in Transformers' model."""
    model = counted(Measured, config, source)
    text = model.text
    width = text.get("intermediate_size") or text.get("ffn_dim") or 4 * text["hidden_size"]
    heads = text["num_attention_heads"]
    return ModelShape(
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=model.counts.widest_queries // heads,
        ffn=max(width) if isinstance(width, list) else width,
        vocab=model.vocab,
        tied=model.is_tied,
        experts=model.experts(),
        measured=model,
    )


def _seeing_shape(config: Mapping[str, Any], source: str) -> ModelShape:
    """Return the shape of an image-text model whose text model has closed forms."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise ConfigError(
            f"{source}: vision_config is {vision!r}; expected an object", code="plan/vision-config"
        )
    family = config["model_type"]
    if family in COUNTED_TOWERS:
        found = counted(CountedTower, config, source)
        return replace(shape_of(found.text, source), counted_tower=found)
    number = partial(_number, vision, f"{source}: vision_config")
    tower = tower_of(vision, number, family=family)
    return replace(shape_of(text_config(config), source), tower=tower)


def _number(config: Mapping[str, Any], source: str, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"{source}: {key} is {value!r}; expected a positive integer", code="plan/not-positive"
        )
    return value
