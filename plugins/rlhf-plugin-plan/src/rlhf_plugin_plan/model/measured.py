"""Shapes of families without closed forms: their numbers are counted in Transformers' own model, made without numbers.

Parameters are counted in the whole model. What a pass keeps is counted in the first layers, as many as have one of each
kind, and the last of a kind stands for all that follow. Under an adapter that trains others in layers of one kind, all
layers are passed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf_core.contracts import ModelAdapter

from .experts import ExpertsShape
from .making import Made, meta_model
from .measured_towers import tower_of
from .precision import BFLOAT16, Precision
from .without_numbers import (
    ATTENTION,
    Attention,
    Pass,
    layers_of,
    passed,
    register_attention,
    text_of,
    without_numbers,
)

if TYPE_CHECKING:
    from torch import nn

TEXT = (
    "cohere",
    "cohere2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3n_text",
    "gemma4_text",
    "glm",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "lfm2",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "opt",
    "phi",
    "phi3",
    "smollm3",
    "starcoder2",
)
"""Values of ``model_type`` of models of text."""
SEEING = (
    "gemma3n",
    "gemma4",
    "glm46v",
    "glm4v",
    "glm4v_moe",
    "idefics3",
    "llava_next",
    "llava_onevision",
    "mistral3",
    "smolvlm",
)
"""The same of models that read images."""
TOKENS = 128
"""Number of tokens of a pass; twice as many show what grows with the tokens. The first 64 are one chunk of gated
linear attention, which has no state before it."""
PROJECTORS = ("multi_modal_projector", "image_newline", "connector", "embed_vision")
"""Names of parts beside a visual encoder that are trained with the text model."""
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of linear layers of one input, which the embedded engine joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes of one token that a forward pass keeps for its backward pass."""

    layers: tuple[float, ...]
    """Bytes of each layer."""
    checkpoint: float
    """Bytes of the inputs of a recomputed layer, on average."""
    outside: float
    """Bytes before and behind the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of a model; those of attention are sums over the layers."""

    parameters: int
    layer_parameters: int
    linear_weights: int
    """Number of the layers' weights that multiply every token."""
    joined_weights: int
    """Number of those in layers that the embedded engine joins."""
    stacked: int
    """Number of weights in stacks of experts."""
    stacked_layers: tuple[int, ...]
    """Layers that have such."""
    tower: int
    """Number of parameters of parts that read pixels or sounds, projectors included."""
    projector: int
    queries: int
    """Numbers of a token that attention multiplies with each key and value: the mean of queries and values."""
    keys: int
    """Numbers of a token in a cache of keys and values."""
    widest_queries: int
    """Numbers of a token in the queries of the widest layer."""
    largest_matrix: int
    """Number of weights of the layers' largest matrix that multiplies every token."""
    largest_stack: int
    """Number of weights of the layers' largest stack of experts; 0 without such."""
    holds_scores: bool
    """Whether attention has scores in memory."""


class Measured:
    """A model without closed forms, from its config.json.

    Args:
        values: of the config.json.
        source: name of the config.json for messages.

    Raises:
        ConfigError: Transformers refuses the values, the model could not compute with them, or a package is missing.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._make = partial(_made, values, source)
        with without_numbers(BFLOAT16):
            made = self._make("bfloat16")
            model, self.missing = _without_memory(made.model), made.missing
            self.text = _by_common_names(model.config.get_text_config())
            self.is_tied = _is_tied(model)
            self.vocab = int(model.get_output_embeddings().weight.shape[0])
            _, layers = layers_of(model)
            named = self.text.get("layer_types") or ()
            kinds = [
                _kind(layer, named[number : number + 1]) for number, layer in enumerate(layers)
            ]
            self.tower = tower_of(model, self._model, source)
            counted = _counted(model, layers)
            self.prefix = _first_of_each(kinds)
            self.stands_for = [_last_of(kinds, number, self.prefix) for number in range(len(kinds))]
            del layers[self.prefix :]
            few, attention = passed(model, layers, TOKENS)
            many, _ = passed(model, layers, 2 * TOKENS)
        self._kept = {BFLOAT16: _grown(few, many, self.stands_for)}
        widths = [attention.get(number, Attention()) for number in self.stands_for]
        self.counts = Counts(
            **counted,
            queries=sum(each.queries + each.values for each in widths) // 2,
            keys=sum(each.keys for each in widths),
            widest_queries=max(each.queries for each in widths),
            holds_scores=any(each.holds_scores for each in widths),
        )

    def kept(self, precision: Precision) -> Kept:
        """Return what a pass keeps where all weights of the text model are trained."""
        if precision not in self._kept:
            with without_numbers(precision):
                self._kept[precision] = self._passes(self._model(precision.parameters))
        return self._kept[precision]

    def kept_under(self, adapter: ModelAdapter, precision: Precision) -> Kept:
        """Return what a pass keeps under an adapter.

        Raises:
            RuntimeError: the adapter reads numbers of the model, which has none.
        """
        model = adapter.wrap(self._model(precision.parameters), 0)
        with adapter.training(model, 0), without_numbers(precision):
            return self._passes(model)

    def _passes(self, model: Any) -> Kept:
        model = _without_memory(model)
        _, layers = layers_of(model)
        stands_for = self.stands_for
        if not _are_trained_alike(layers, stands_for):
            stands_for = list(range(len(layers)))
        del layers[max(stands_for) + 1 :]
        few, many = (passed(model, layers, tokens)[0] for tokens in (TOKENS, 2 * TOKENS))
        return _grown(few, many, stands_for)

    def _model(self, dtype: str) -> Any:
        return self._make(dtype).model

    @property
    def state_numbers(self) -> tuple[int, int]:
        """Numbers of one sequence's states in float32, and of those in the type of the matmuls: matrices of gated
        linear attention, and last inputs of convolutions."""
        text, kinds = self.text, list(self.text.get("layer_types") or ())
        short = kinds.count("conv") * text["hidden_size"] * (text.get("conv_L_cache", 1) - 1)
        linear = kinds.count("linear_attention")
        if not linear:
            return 0, short
        heads, key = text["linear_num_value_heads"], text["linear_key_head_dim"]
        value = text["linear_value_head_dim"]
        channels = 2 * text["linear_num_key_heads"] * key + heads * value
        taps = text["linear_conv_kernel_dim"] - 1
        return linear * heads * key * value, short + linear * channels * taps

    def experts(self) -> ExpertsShape | None:
        """Return the experts of the layers; None: there are none."""
        counts, text = self.counts, self.text
        if not counts.stacked:
            return None
        number = _first(text, "num_local_experts", "n_routed_experts", "num_experts")
        a_layer = counts.stacked // len(counts.stacked_layers)
        return ExpertsShape(
            number=number,
            chosen=_first(text, "num_experts_per_tok", "top_k_experts"),
            width=a_layer // (3 * text["hidden_size"] * number),
            dense=frozenset(range(len(self.stands_for))) - set(counts.stacked_layers),
        )


class CountedTower:
    """The part of an image-text model that reads pixels, counted beside a text model with closed forms.

    Args:
        values: of the config.json.
        source: name of the config.json for messages.

    Raises:
        ConfigError: as from ``Measured``.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        def make(dtype: str) -> Any:
            return _made(values, source, dtype).model

        with without_numbers(BFLOAT16):
            model = _without_memory(make("bfloat16"))
            text = model.config.get_text_config().to_dict()
            self.text: dict[str, Any] = {**text, "tie_word_embeddings": _is_tied(model)}
            """The whole configuration of the text model."""
            self.tower = tower_of(model, make, source)
            sizes = _beside_text(model)
        self.parameters, self.projector_parameters = sizes["tower"], sizes["projector"]


def _made(values: Mapping[str, Any], source: str, dtype: str) -> Made:
    register_attention()
    return meta_model(values, source, dtype, ATTENTION)


def _is_tied(model: Any) -> bool:
    return bool(model.get_input_embeddings().weight is model.get_output_embeddings().weight)


def _without_memory(model: Any) -> Any:
    """Return the model on a CPU, within ``without_numbers``: the meta device knows no autocast."""
    model.to_empty(device="cpu").tie_weights()
    return model


def _first(text: Mapping[str, Any], *names: str) -> int:
    return next(int(value) for name in names if (value := text.get(name)))


def _by_common_names(config: Any) -> dict[str, Any]:
    """Return the entries of a configuration, also by the names that families have in common."""
    own: dict[str, Any] = config.to_dict()
    return own | {name: own[other] for name, other in config.attribute_map.items() if other in own}


def _kind(layer: nn.Module, named: Sequence[str]) -> str:
    """Return what is equal in layers that keep the same.

    Args:
        named: the kind in the configuration's ``layer_types``, if it has them.
    """
    shapes = [(name, tuple(p.shape)) for name, p in layer.named_parameters()]
    shared = [
        getattr(module, "is_kv_shared_layer", False) or getattr(module, "activation_sparsity", 0)
        for module in layer.modules()
    ]
    return repr((tuple(named), shapes, [each for each in shared if each]))


def _first_of_each(kinds: Sequence[str]) -> int:
    """Return how many layers have one of each kind, and one that is not the first of all."""
    return min(len(kinds), max(2, 1 + max(kinds.index(kind) for kind in set(kinds))))


def _last_of(kinds: Sequence[str], number: int, prefix: int) -> int:
    """Return the number of a layer within the first ones that stands for another."""
    if number < prefix:
        return number
    return max(each for each in range(prefix) if kinds[each] == kinds[number])


def _are_trained_alike(layers: nn.ModuleList, stands_for: Sequence[int]) -> bool:
    """Return whether each layer trains what the layer that stands for it does, from the first layer on: without a
    trained weight before it, a layer keeps nothing."""
    trained = [
        [(name, tuple(p.shape)) for name, p in layer.named_parameters() if p.requires_grad]
        for layer in layers
    ]
    return bool(trained[0]) and all(
        each == trained[other] for each, other in zip(trained, stands_for, strict=True)
    )


def _grown(few: Pass, many: Pass, stands_for: Sequence[int]) -> Kept:
    """Return the bytes of one token by what twice as many tokens keep more.

    Args:
        stands_for: of each layer, the number of the one that was passed in its place.
    """
    each, inputs = (
        [(b - a) / TOKENS for a, b in zip(*pair, strict=True)]
        for pair in ((few.layers, many.layers), (few.inputs, many.inputs))
    )
    entered = [inputs[number] for number in stands_for]
    return Kept(
        layers=tuple(each[number] for number in stands_for),
        checkpoint=sum(entered) / len(entered),
        outside=(many.outside - few.outside) / TOKENS,
    )


def _counted(model: Any, layers: nn.ModuleList) -> dict[str, Any]:
    """Return the entries of ``Counts`` that follow from parameters alone."""
    stacks = [[p for p in layer.parameters() if _is_stack(p, layer)] for layer in layers]
    linear = [p for layer in layers for p in _matrices(layer)]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "layer_parameters": sum(p.numel() for p in layers.parameters()),
        "linear_weights": sum(p.numel() for p in linear),
        "joined_weights": sum(_joined(layers)),
        "stacked": sum(p.numel() for each in stacks for p in each),
        "stacked_layers": tuple(number for number, each in enumerate(stacks) if each),
        **_beside_text(model),
        "largest_matrix": max(p.numel() for p in linear),
        "largest_stack": max((p.numel() for each in stacks for p in each), default=0),
    }


def _beside_text(model: Any) -> dict[str, int]:
    """Return the numbers of parameters of parts that read pixels or sounds, and of projectors among them."""
    text = {id(p) for p in text_of(model).parameters()}
    text |= {id(p) for p in model.get_output_embeddings().parameters()}
    beside = [(name, p.numel()) for name, p in model.named_parameters() if id(p) not in text]
    projector = (size for name, size in beside if set(name.split(".")) & set(PROJECTORS))
    return {"tower": sum(size for _, size in beside), "projector": sum(projector)}


def _is_stack(parameter: nn.Parameter, layer: nn.Module) -> bool:
    """Return whether a parameter has the weights of all experts of a layer: a convolution's three axes are others."""
    from torch import nn

    convolved = {
        id(module.weight) for module in layer.modules() if isinstance(module, nn.Conv1d | nn.Conv2d)
    }
    return parameter.dim() == 3 and id(parameter) not in convolved


def _matrices(layer: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the weights that multiply every token: matrices, but no biases of stacks and no short convolutions."""
    for name, parameter in layer.named_parameters():
        if parameter.dim() == 2 and not name.endswith("bias"):
            yield parameter


def _joined(layers: nn.ModuleList) -> Iterator[int]:
    """Yield the weights of linear layers of one input."""
    from torch import nn

    for parent in layers.modules():
        for names in SIBLINGS:
            found = [getattr(parent, name, None) for name in names]
            plain = [part for part in found if type(part) is nn.Linear]
            if len(plain) == len(names) and len({part.bias is None for part in plain}) == 1:
                yield sum(part.weight.numel() for part in plain)


CountedT = TypeVar("CountedT", Measured, CountedTower)


def counted(kind: type[CountedT], config: Mapping[str, Any], source: str) -> CountedT:
    """Return what ``kind`` counts in a config.json; the arguments are its own."""
    made: Any = kind  # a class has a hash, which mypy does not see
    found: CountedT = _counted_once(made, json.dumps(config, sort_keys=True), source)
    return found


@lru_cache(maxsize=16)
def _counted_once(kind: Any, config: str, source: str) -> Any:
    return kind(json.loads(config), source)
