"""Weights of an adapted model by the names of the plain one: factors alone, or merged into the base's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

import torch
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError

from .stacks import StackFactors, stack_factors
from .token_rows import TokenRows, row_tables

NAME = "default"
"""PEFT's name of the adapter that is trained."""
BEGINNING = "beginning"
"""PEFT's name of a fixed copy of an adapter that goes on, as it was before the first update."""

_found: WeakKeyDictionary[nn.Module, dict[str, nn.Module]] = WeakKeyDictionary()
"""``_adapted_modules`` of each model: a walk over a deep model takes longer than the copies of its factors."""


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Return the adapted modules by their names in the plain model, without those whose stacks are adapted."""
    return {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, LoraLayer) and not isinstance(m, StackFactors)
    }


def saved_modules(model: nn.Module) -> dict[str, ModulesToSaveWrapper]:
    """Return the modules that are trained whole by their names in the plain model."""
    return {name: m for name, m in model.named_modules() if isinstance(m, ModulesToSaveWrapper)}


@torch.no_grad()
def factors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield ``MODULE.lora_A`` (r, in) and ``MODULE.lora_B`` (out, r), with the scaling in the latter.

    Raises:
        ConfigError: a trained weight is no pair of factors of a linear layer, so that an engine would lack it.
    """
    adapted = _adapted_modules(model)
    layers = {name: m for name, m in adapted.items() if isinstance(m, LoraLayer)}
    head = model.get_output_embeddings()
    unserved = [name for name, module in adapted.items() if not _is_served(module, head)]
    if unserved:
        raise ConfigError(
            f"the adapter trains {unserved[0]}, which is no linear layer inside of the model, and engines serve "
            f"factors of those alone. {_way_out(model)}",
            code="adapter/unservable-layer",
        )
    pairs = [(layer, pair) for layer in layers.values() for pair in active(layer)]
    # In one call, which computes in float32 and rounds once.
    scaled = torch._foreach_mul(
        [layer.lora_B[pair].weight for layer, pair in pairs],
        [float(layer.scaling[pair]) for layer, pair in pairs],
    )
    rest = iter(scaled)
    for name, layer in layers.items():
        a = [layer.lora_A[pair].weight.detach() for pair in active(layer)]
        b = [next(rest) for _ in a]
        yield f"{name}.lora_A", a[0] if len(a) == 1 else torch.cat(a)
        yield f"{name}.lora_B", b[0] if len(b) == 1 else torch.cat(b, dim=1)


@torch.no_grad()
def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain model's tensors, in its order: the base's, with merged weights in place of adapted ones.

    A merged weight is W + scaling * B A, under DoRA with its rows rescaled to the trained lengths. It is computed in
    float32 and rounded once. The base is only read.

    Raises:
        ConfigError: the base is quantized.
    """
    layers, saved, tables = lora_layers(model), saved_modules(model), row_tables(model)
    stacks = stack_factors(model)
    around = {name.rpartition(".")[0]: stack for name, stack in stacks.items()}
    tied: dict[int, Tensor] = {}
    for key, tensor in model.state_dict().items():
        name, _, rest = key.partition(".base_layer.")
        if rest and name in around:
            own = rest.replace("base_layer.", "")
            plain = f"{name}.{own}"
            if plain in stacks:
                yield plain, stacks[plain].merged(tensor, NAME)
            elif not own.startswith("lora_"):
                yield plain, tensor
            continue
        if rest == "weight" and name in tables:
            rows = tables[name].trainable_tokens_delta[NAME]
            # Embeddings and head that share a matrix are one tensor in the plain model too.
            yield f"{name}.weight", tied.setdefault(id(rows), tables[name].merged(NAME))
            continue
        if rest:
            is_adapted = rest == "weight" and name in layers
            yield f"{name}.{rest}", _merged(layers[name], tensor) if is_adapted else tensor
            continue
        name, _, rest = key.partition(".original_module.")
        if rest:
            yield f"{name}.{rest}", saved[name].modules_to_save[NAME].state_dict()[rest]
        elif not _is_adapters_own(key, layers, saved, tables, around):
            yield key, tensor


def active(layer: LoraLayer) -> tuple[str, ...]:
    """Return PEFT's names of the pairs of factors that a layer adds up: the trained one, and its fixed counterpart if
    it began with a part of the weight."""
    return (NAME, BEGINNING) if BEGINNING in layer.active_adapters else (NAME,)


def _adapted_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return what the adapter put into the model by the names in the plain model; an adapter never changes later."""
    if model not in _found:
        kinds = (LoraLayer, ModulesToSaveWrapper, TokenRows)
        _found[model] = {n: m for n, m in model.named_modules() if isinstance(m, kinds)}
    return _found[model]


def _way_out(model: PreTrainedModel) -> str:
    if getattr(model.config, "quantization_config", None) is not None:
        return "Choose --actor.adapter lora with --actor.lora.serve merged."
    return "Set --actor.lora.serve merged."


def _is_served(module: nn.Module, head: nn.Module) -> bool:
    is_linear = isinstance(module, LoraLayer) and isinstance(module.get_base_layer(), nn.Linear)
    return is_linear and module is not head


def _is_adapters_own(key: str, *adapted: Mapping[str, nn.Module]) -> bool:
    parts = key.split(".")
    owners = {".".join(parts[:end]) for end in range(1, len(parts))}
    return any(owner in modules for owner in owners for modules in adapted)


def _merged(layer: LoraLayer, weight: Tensor) -> Tensor:
    if not weight.is_floating_point():
        raise ConfigError(
            "the base is quantized, so the adapter cannot be merged into it: no engine in another process can serve "
            "this policy. Use --actor.adapter lora, or --engine embedded with --runtime local, which share the model.",
            code="adapter/quantized-base",
        )
    total: Tensor = weight.float()
    for pair in active(layer):
        total = total + _product(layer, pair) * layer.scaling[pair]
    if NAME in layer.lora_magnitude_vector:
        lengths = layer.lora_magnitude_vector[NAME].weight.float().reshape(-1, 1)
        by_input = isinstance(layer.get_base_layer(), nn.Embedding) or layer.fan_in_fan_out
        rows = total.T if by_input else total
        total = lengths * rows / torch.linalg.norm(rows, dim=1, keepdim=True)
        total = total.T if by_input else total
    return total.to(weight.dtype)


def _product(layer: LoraLayer, pair: str) -> Tensor:
    """Return B A in float32, in the orientation of the base's weight."""
    if NAME in layer.lora_embedding_A:
        by_token: Tensor = (
            layer.lora_embedding_B[pair].float() @ layer.lora_embedding_A[pair].float()
        )
        return by_token.T
    product: Tensor = layer.lora_B[pair].weight.float() @ layer.lora_A[pair].weight.float()
    return product.T if layer.fan_in_fan_out else product
