"""Counts of a model under an adapter: parameters that it trains, factors that engines get, bytes that layers keep.

Nothing here knows an adapter. The model is made on the meta device, where tensors have shapes and no numbers, and the
adapter changes it there as it changes the real one (``ModelAdapter.wrap``). Parameters are counted in the result, and
each linear layer is called with tensors without numbers, which shows the arrays that autograd would keep.

Torch is imported when the first adapter is counted, as the run's own adapter imports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.contracts import ModelAdapter, RoleSpec
from rlhf_core.outside.json_reader import read_object
from rlhf_core.plugins import Plugins

from .activations import AdaptedLayer
from .making import meta_model
from .measured import SEEING as SEEING_MEASURED
from .measured import TEXT, Measured
from .precision import Precision
from .without_numbers import storage, without_numbers

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS = 64
"""Number of tokens with which a layer is called; twice as many show what grows with the tokens."""
LAYER = re.compile(r"^(?!.*vision_tower).*\.layers\.(\d+)\.")
READERS = {
    "q_proj": "first_norm",
    "k_proj": "first_norm",
    "v_proj": "first_norm",
    "o_proj": "attention",
    "gate_proj": "second_norm",
    "up_proj": "second_norm",
    "down_proj": "product",
    "shared_expert_gate": "second_norm",
    "in_proj_qkv": "first_norm",
    "in_proj_qkvz": "first_norm",
    "in_proj_z": "first_norm",
    "in_proj_b": "first_norm",
    "in_proj_a": "first_norm",
    "in_proj_ba": "first_norm",
    "out_proj": "attention",
}
"""Linear layer of the modeled families -> the array of ``AdaptedLayer`` that the layer reads."""
NORMS = ("input_layernorm", "post_attention_layernorm")
BLOCK = 64
"""Number of weights that share a scale in bitsandbytes' 4 bits."""
SCALES = 256
"""Number of scales that share a scale of their own if they are quantized too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCounts:
    """A model under an adapter, in numbers."""

    name: str
    trained: int
    tables: int = 0
    """Number of trained parameters in embeddings and output head."""
    head: int = 0
    """Number of trained parameters in the output head."""
    matrices: int = 0
    """Number of trained weights in linear layers that multiply every token."""
    added: int = 0
    """Number of those of ``matrices`` that the plain model does not have."""
    largest: int = 0
    """Number of weights of the largest of these matrices."""
    factors: int = 0
    """Number of weights of the factors that engines get at each update; 0 if they get whole weights."""
    linear_weight_bytes: float | None = None
    """Bytes of one weight of the base's linear layers if they are quantized; None: they have the run's dtype."""
    layers: tuple[AdaptedLayer, ...] = ()
    """Layers through which gradients flow: from the first one in which something is trained on."""
    outside: float | None = None
    """Bytes of a token that are kept outside of the layers, of a family without closed forms."""


class UncountedAdapter(Exception):
    """An adapter that cannot be put into a model without numbers; the text says why."""


class AdaptedModels:
    """Counts of adapters, each made once although many configurations are predicted."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._found: dict[str, AdapterCounts | UncountedAdapter] = {}

    def counts(self, spec: RoleSpec, config: Path, precision: Precision) -> AdapterCounts:
        """Return the counts of a role's adapter.

        Args:
            config: the config.json of the role's model, or its folder.

        Raises:
            ConfigError: the adapter's options do not fit the model.
            UncountedAdapter: the adapter reads weights of the model, or quantizes them in a way that is not known.
        """
        key = repr((spec.role, spec.adapter, str(config), precision, spec.vision))
        if key not in self._found:
            self._found[key] = self._count(spec, config, precision)
        found = self._found[key]
        if isinstance(found, UncountedAdapter):
            raise found
        return found

    def _count(
        self, spec: RoleSpec, config: Path, precision: Precision
    ) -> AdapterCounts | UncountedAdapter:
        assert spec.adapter is not None
        adapter: ModelAdapter = self._plugins.build(spec.adapter)
        try:
            name = spec.adapter.name.partition(":")[2]
            return count(
                adapter,
                name,
                config,
                precision,
                is_served=spec.role == "policy",
                frozen_tower=spec.vision is not None and spec.vision.parts.freeze_tower,
            )
        except RuntimeError as error:  # what torch raises where a tensor has no numbers
            return UncountedAdapter(next(iter(str(error).splitlines()), type(error).__name__))


def count(
    adapter: ModelAdapter,
    name: str,
    config: Path,
    precision: Precision,
    *,
    is_served: bool = True,
    frozen_tower: bool = False,
) -> AdapterCounts:
    """Return the counts of a model under an adapter. Takes no memory for weights.

    Args:
        is_served: engines get the adapter's updates, as they get those of a policy.
        frozen_tower: the adapter trains nothing in the vision tower.

    Raises:
        ConfigError: the adapter's options do not fit the model.
        RuntimeError: the adapter reads numbers of the model, which has none, or its quantization is not known.
    """
    values = read_object(_file(config), "a model's config.json")
    model, _ = meta_model(values, str(_file(config)), precision.parameters)
    plain = {key for key, _ in model.named_parameters()}
    linear = {
        key: module.in_features
        for key, module in model.named_modules()
        if type(module).__name__ == "Linear" and LAYER.search(key)
    }
    stacks = {key: p.numel() for key, p in model.named_parameters() if p.dim() == 3}
    model = adapter.wrap(model, 0)
    if frozen_tower:
        for key, parameter in model.named_parameters():
            if ".visual." in key or ".vision_tower." in key:
                parameter.requires_grad_(False)
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    matrices = {
        key: p
        for key, p in trained.items()
        if p.dim() > 1 and any(key.startswith(f"{each}.") for each in linear)
    }
    head, tables = _of_tables(model)
    outside = None
    if values.get("model_type") in (*TEXT, *SEEING_MEASURED):
        found = Measured(values, str(config)).kept_under(adapter, precision)
        outside = found.outside
        kept = [
            AdaptedLayer(attention=True, number=number, own=own, is_whole=True)
            for number, own in enumerate(found.layers)
            if own
        ]
    else:
        kept = list(_layers(adapter, model, linear, stacks, precision))
    sends_factors = is_served and adapter.served_rank is not None
    return AdapterCounts(
        name=name,
        trained=_size(trained),
        tables=_size({key: p for key, p in trained.items() if id(p) in tables}),
        head=_size({key: p for key, p in trained.items() if id(p) in head}),
        matrices=_size(matrices),
        added=_size({key: p for key, p in matrices.items() if key not in plain}),
        largest=max((p.numel() for p in matrices.values()), default=0),
        factors=_size(dict(adapter.factors(model))) if sends_factors else 0,
        linear_weight_bytes=linear_weight_bytes(adapter.load_options()),
        layers=tuple(kept),
        outside=outside,
    )


def _file(config: Path) -> Path:
    return config / "config.json" if config.is_dir() else config


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _of_tables(model: Any) -> tuple[set[int], set[int]]:
    """Return the ids of the output head's parameters, and those of head and embeddings."""
    head = {id(p) for p in model.get_output_embeddings().parameters()}
    return head, head | {id(p) for p in model.get_input_embeddings().parameters()}


def _layers(
    adapter: ModelAdapter,
    model: nn.Module,
    linear: Mapping[str, int],
    stacks: Mapping[str, int],
    precision: Precision,
) -> Iterator[AdaptedLayer]:
    """Yield the layers from the first one in which something is trained on; all of them if embeddings are trained."""
    trained = [key for key, p in model.named_parameters() if p.requires_grad]
    adapted = {int(number) for key in trained for number in LAYER.findall(key)}
    layers = sorted({int(LAYER.findall(key)[0]) for key in linear})
    begins = (
        0 if any("embed_tokens" in key for key in trained) else min(adapted, default=len(layers))
    )
    found: dict[str, tuple[int, bool]] = {}
    with adapter.training(model, 0), without_numbers(precision):
        for number in layers[begins:]:
            inside = [key for key in linear if f".layers.{number}." in key]
            own = 0
            kept: set[str] = set()
            for key in inside:
                reads = READERS[key.rpartition(".")[2]]
                # Under autocast a norm's output is float32 like the parameters, other arrays have the matmuls' dtype.
                dtype = precision.parameters if reads.endswith("norm") else precision.compute
                module = model.get_submodule(key)
                alike = repr((type(module), reads, [*map(_form, module.named_parameters())]))
                if alike not in found:
                    found[alike] = _kept_of_a_token(module, linear[key], dtype)
                own += found[alike][0]
                kept |= {reads} if found[alike][1] else set()
            own_names = [key for key in trained if f".layers.{number}." in key]
            sums = _sums({k: n for k, n in stacks.items() if f".layers.{number}." in k}, own_names)
            norms = sum(any(f".{norm}." in key for key in own_names) for norm in NORMS)
            yield AdaptedLayer(
                **dict.fromkeys(kept, True), trained_norms=norms, number=number, sums=sums, own=own
            )


def _form(named: tuple[str, nn.Parameter]) -> tuple[str, Any, bool]:
    name, parameter = named
    return name, tuple(parameter.shape), parameter.requires_grad


def _sums(stacks: Mapping[str, int], trained: Sequence[str]) -> int:
    """Return the number of weights in stacks of modules inside of which something is trained. Those of a module count
    as adapted together."""
    owners = {key: f"{key.rpartition('.')[0]}." for key in stacks}
    return sum(
        size
        for key, size in stacks.items()
        if any(name.startswith(owners[key]) for name in trained)
    )


def _kept_of_a_token(module: nn.Module, inputs: int, dtype: str) -> tuple[int, bool]:
    """Return the bytes of one token that a linear layer keeps beside its input for the backward pass, and whether it
    keeps the input."""
    few, many = (_kept(module, inputs, tokens, dtype) for tokens in (TOKENS, 2 * TOKENS))
    return (many[0] - few[0]) // TOKENS, many[1]


def _kept(module: nn.Module, inputs: int, tokens: int, dtype: str) -> tuple[int, bool]:
    """Return the same for all tokens; arrays that do not grow with the tokens are in the bytes too."""
    import torch

    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {
        key: torch.empty(t.shape, dtype=t.dtype).requires_grad_(t.requires_grad)
        for key, t in held.items()
    }
    x = torch.empty(1, tokens, inputs, dtype=getattr(torch, dtype), requires_grad=True)
    found: dict[int, Tensor] = {}  # held, so that no storage comes twice

    def note(tensor: Tensor) -> Tensor:
        found[storage(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = torch.func.functional_call(module, given, (x,))
    del output
    for parameter in given.values():
        found.pop(storage(parameter), None)
    keeps_input = found.pop(storage(x), None) is not None
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values()), keeps_input


def linear_weight_bytes(load_options: Mapping[str, Any]) -> float | None:
    """Return the bytes of one weight of a linear layer of a base, scales included; None if it is not quantized as it is
    loaded.

    In 4 bits ``1/2 + 4/64`` bytes; with quantized scales ``1/2 + 1/64 + 4/(64 * 256)``, which is 4.127 bits. In 8 bits
    1 byte: a row's scale is not counted.

    Source: Dettmers et al. 2023 (QLoRA), arXiv:2305.14314, section 3.

    Raises:
        RuntimeError: the options quantize in another way.
    """
    config = load_options.get("quantization_config")
    if config is None:
        return None
    if getattr(config, "load_in_4bit", False):
        if config.bnb_4bit_use_double_quant:
            return 0.5 + 1 / BLOCK + 4 / (BLOCK * SCALES)
        return 0.5 + 4 / BLOCK
    if getattr(config, "load_in_8bit", False):
        return 1.0
    raise RuntimeError(f"{type(config).__name__}: its bytes of a weight are not known")
