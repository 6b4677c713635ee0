"""The question whether an adapter fits a base, asked of each module, so that a refusal names the module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from rlhf_core import ConfigError, MissingDependency

from .folder import CONFIG, PREFIX, AdapterFolder
from .stacks import TARGETS, Stack, stack_of

_LOW_RANK = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?A(\.weight)?")


def check_fit(folder: AdapterFolder, base: str, model: nn.Module) -> None:
    """Refuse an adapter whose tensors do not fit a model.

    Args:
        base: folder or hub name of the model, for messages.

    Raises:
        ConfigError: names the first module that is missing or has other shapes.
    """
    for problem in _problems(folder, model):
        raise ConfigError(
            f"adapter {folder.path} does not fit {base}: {problem}", code="adapter/does-not-fit"
        )


def peft_model(folder: AdapterFolder) -> Any:
    """Return ``peft.PeftModel``.

    Raises:
        MissingDependency: PEFT is not installed.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingDependency(
            f"adapter {folder.path}: reading it needs peft.\n  pip install 'rlhf-torch[peft]'"
        ) from error
    return PeftModel


def check_loaded(folder: AdapterFolder, base: str, wrapped: Any) -> None:
    """Refuse an adapter of which PEFT has loaded less, or more, than its file holds: its config names other modules.

    Args:
        wrapped: the ``PeftModel`` of the folder.

    Raises:
        ConfigError: names the first tensor that differs.
    """
    from peft.utils import get_peft_model_state_dict

    state = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    loaded = {_factor(name.removeprefix(PREFIX)) for name in state}
    held = {_factor(name) for name in folder.shapes}
    if differing := sorted(name for name in loaded ^ held if ".lora_" in name):
        first = differing[0]
        problem = (
            f"its file has {first}, and target_modules in {CONFIG} do not name that module"
            if first in held
            else f"target_modules in {CONFIG} name a module for which its file has no {first}"
        )
        raise ConfigError(
            f"adapter {folder.path} does not fit {base}: {problem}", code="adapter/does-not-fit"
        )


def _factor(name: str) -> str:
    # DoRA's lengths are there under both names.
    return name.removesuffix(".weight")


def _problems(folder: AdapterFolder, model: nn.Module) -> Iterator[str]:
    modules = dict(model.named_modules())
    weights = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    targets = folder.config.get(TARGETS) or ()
    for name, shape in folder.shapes.items():
        if found := _LOW_RANK.fullmatch(name):
            module = found["module"]
            if (stack := stack_of(module, targets, modules)) is not None:
                yield from _stack_problems(folder, module, stack)
            elif module not in modules:
                yield f"the base has no module {module}, which the adapter changes"
            else:
                yield from _rank_problems(folder, module, modules[module], found["embedding"] or "")
        elif name in weights and weights[name] != shape:
            yield f"{name} has the shape {weights[name]} in the base; the adapter's has {shape}"


def _rank_problems(
    folder: AdapterFolder, name: str, module: nn.Module, embedding: str
) -> Iterator[str]:
    """Yield each problem of the factors A (r, in) and B (out, r) of one module."""
    shapes = folder.shapes
    suffix = "" if embedding else ".weight"
    a = shapes[f"{name}.lora_{embedding}A{suffix}"]
    b = shapes.get(f"{name}.lora_{embedding}B{suffix}")
    if b is None:
        yield f"{name} has a factor A and no factor B"
        return
    rank = rank_of(folder.config, name)
    if len(a) != 2 or len(b) != 2 or not a[0] == b[1] == rank:
        yield (
            f"{name} has factors A {a} and B {b}; expected (r, in) and (out, r) with the rank r = {rank} of its config"
        )
        return
    size = _size(module)
    if size is not None and size != (b[0], a[1]):
        yield f"{name} has the shape {size} in the base; the adapter's factors make {(b[0], a[1])}"


def _stack_problems(folder: AdapterFolder, name: str, stack: Stack) -> Iterator[str]:
    """Yield each problem of the factors A (r E, in) and B (out, r E) of one stack of E matrices."""
    rank = rank_of(folder.config, stack.name)
    expected = stack.factor_shapes(rank)
    found = tuple(folder.shapes.get(f"{name}.lora_{factor}.weight") for factor in "AB")
    if expected is None:
        yield f"{stack.name} has the shape {tuple(stack.weight.shape)} in the base; expected a matrix or a stack"
    elif found != expected:
        yield (
            f"{stack.name} has the shape {tuple(stack.weight.shape)} in the base, for which factors of rank {rank} are "
            f"A {expected[0]} and B {expected[1]}; the adapter has A {found[0]} and B {found[1]}"
        )


def rank_of(config: Mapping[str, Any], name: str) -> int:
    """Return the rank that an adapter's config gives a module."""
    return int(pattern_value(config.get("rank_pattern"), name, config.get("r", 0)))


def pattern_value(patterns: Mapping[str, Any] | None, name: str, usual: Any) -> Any:
    """Return the value of the first of an adapter's patterns that matches a module's name, or else the usual one."""
    for pattern, value in (patterns or {}).items():
        # PEFT's own rule: a pattern is a regular expression for the end of the name, from a dot on.
        if re.match(rf"(.*\.)?({pattern})$", name):
            return value
    return usual


def _size(module: nn.Module) -> tuple[int, int] | None:
    """Return (out, in) of a module's matrix, as the factors have it; None where it is none."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if isinstance(module, nn.Embedding):
        return module.embedding_dim, module.num_embeddings
    return None
