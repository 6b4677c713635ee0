"""Modules of a model that the options name, refused by name where they cannot be adapted."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlhf_core import ConfigError

from .beginning import STACKS

log = logging.getLogger(__name__)

LINEAR = (nn.Linear, Conv1D)
_PLAIN = re.compile(r"[\w.]+")
_EXPERTS = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Names that PEFT reads, in some families, as those of stacked experts, whichever module was asked for."""


def adapted_modules(
    model: PreTrainedModel,
    wanted: Sequence[str],
    excluded: Sequence[str] = (),
    stacks: Sequence[str] = (),
) -> list[str]:
    """Return the names of the modules to adapt, in the model's order.

    A name stands for all modules whose own name is it or ends with it; a text with other characters than letters,
    digits, ``_`` and ``.`` is a regular expression for whole names. Without any: all linear layers but the output head,
    and but those whose names PEFT would read as names of stacked experts.

    Args:
        stacks: stacked parameters that are adapted; others are warned of.

    Raises:
        ConfigError: a name fits nothing, or something that has no weight matrix; the message has the nearest names.
    """
    stacked = _stacked_parameters(model)
    if left := sorted(set(stacked) - set(stacks)):
        log.warning(
            "%s holds its experts as stacked parameters, such as %s (%.0f %% of all weights): the adapter leaves them "
            "as they are, and adapts the attention and linear layers beside it. target_parameters of the adapter "
            "names stacks to adapt too, such as %s",
            type(model).__name__,
            left[0],
            100 * _share(model, left),
            " ".join(dict.fromkeys(".".join(name.split(".")[-2:]) for name in left)),
        )
    if wanted:
        found = _named(model, wanted, "target")
        _check_kinds(model, found)
        _check_experts(model, found)
    else:
        linear = _linear(model)
        taken = _taken_for_experts(model, linear)
        found = [name for name in linear if name not in taken]
    if excluded:
        found = _without(model, found, excluded)
    check_tied(model, found, "target")
    return found


def adapted_stacks(model: PreTrainedModel, wanted: Sequence[str]) -> list[str]:
    """Return the names of the stacked parameters to adapt, in the model's order, named as in ``adapted_modules``.

    Raises:
        ConfigError: a name fits nothing, or a parameter that is no stack of matrices.
    """
    names = [name for name, _ in model.named_parameters()]
    stacked = _stacked_parameters(model)
    kept: set[str] = set()
    for text in wanted:
        found = [name for name in names if _fits(text, name, STACKS)]
        if wrong := [name for name in found if name not in stacked]:
            raise ConfigError(
                f"{STACKS} {text!r} of the adapter: {wrong[0]} has the shape "
                f"{tuple(model.get_parameter(wrong[0]).shape)}; expected stacks of matrices, one for each expert. "
                "Layers are named by target.",
                code="adapter/no-stack",
            )
        if not found:
            ends = dict.fromkeys(".".join(name.split(".")[-2:]) for name in stacked)
            has = f"its stacks are {', '.join(ends)}" if ends else "it has no stacks of experts"
            raise ConfigError(
                f"{STACKS} {text!r} of the adapter: {type(model).__name__} has no parameter of that name; {has}",
                code="adapter/no-such-parameter",
            )
        kept.update(found)
    return [name for name in names if name in kept]


def _without(model: PreTrainedModel, found: list[str], excluded: Sequence[str]) -> list[str]:
    out = {name for text in excluded for name in _named(model, [text], "exclude")}
    if not (adapted := set(found)) & out:
        raise ConfigError(
            f"exclude {' '.join(excluded)} of the adapter: none of these modules would be adapted. Leave it out.",
            code="adapter/excludes-none",
        )
    if adapted <= out:
        raise ConfigError(
            f"exclude {' '.join(excluded)} of the adapter: no module is left to adapt",
            code="adapter/excludes-all",
        )
    return [name for name in found if name not in out]


def require_patterns(found: Sequence[str], patterns: Iterable[str], option: str) -> None:
    """Refuse a pattern, read as PEFT reads it, that fits none of the adapted modules.

    Raises:
        ConfigError: names the pattern, and the nearest names.
    """
    for pattern in patterns:
        try:
            fits = any(re.match(rf"(.*\.)?({pattern})$", name) for name in found)
        except re.error as error:
            raise ConfigError(
                f"{option} {pattern!r} of the adapter: expected a name or a regular expression; {error}",
                code="adapter/target-expression",
            ) from error
        if not fits:
            near = difflib.get_close_matches(pattern, _ends(found), n=3, cutoff=0.4)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise ConfigError(
                f"{option} {pattern!r} of the adapter: no adapted module has that name{hint}",
                code="adapter/no-adapted-module",
            )


def saved_modules(model: PreTrainedModel, wanted: Sequence[str]) -> list[str]:
    """Return the names of the modules that are trained whole.

    Raises:
        ConfigError: a name fits nothing, or a module that shares its weight with another one.
    """
    found = _named(model, wanted, "modules_to_save")
    check_tied(model, found, "modules_to_save")
    return found


def _linear(model: PreTrainedModel) -> list[str]:
    head = model.get_output_embeddings()
    return [
        name for name, module in model.named_modules() if _is_linear(module) and module is not head
    ]


def _is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer that PEFT can wrap. One of a family's own class computes something else
    than a product: a router returns experts."""
    return isinstance(module, LINEAR) and not type(module).__module__.startswith(
        "transformers.models."
    )


def _named(model: PreTrainedModel, wanted: Sequence[str], option: str) -> list[str]:
    names = [name for name, _ in model.named_modules() if name]
    kept: set[str] = set()
    for text in wanted:
        found = [name for name in names if _fits(text, name, option)]
        if not found:
            near = difflib.get_close_matches(text, _ends(names), n=3, cutoff=0.4)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise ConfigError(
                f"{option} {text!r} of the adapter: {type(model).__name__} has no module of that name{hint}",
                code="adapter/no-such-module",
            )
        kept.update(found)
    return [name for name in names if name in kept]


def _fits(text: str, name: str, option: str) -> bool:
    if _PLAIN.fullmatch(text):
        return name == text or name.endswith(f".{text}")
    try:
        return re.fullmatch(text, name) is not None
    except re.error as error:
        raise ConfigError(
            f"{option} {text!r} of the adapter: expected a name or a regular expression; {error}",
            code="adapter/target-expression",
        ) from error


def _ends(names: Iterable[str]) -> list[str]:
    """Return the last words of all names, each once: those by which a user names modules."""
    return list(dict.fromkeys(name.rpartition(".")[2] for name in names))


def _check_kinds(model: PreTrainedModel, found: Iterable[str]) -> None:
    for name in found:
        module = model.get_submodule(name)
        if not (_is_linear(module) or isinstance(module, nn.Embedding)):
            raise ConfigError(
                f"target of the adapter: {name} is a {type(module).__name__}; expected linear layers or embeddings. "
                f"Name some inside of it, or have it trained whole with modules_to_save.",
                code="adapter/target-not-linear",
            )


def _check_experts(model: PreTrainedModel, found: Iterable[str]) -> None:
    if wrong := _taken_for_experts(model, found):
        raise ConfigError(
            f"target of the adapter: {wrong[0]} bears a name of experts, and the experts of this model are stacked "
            "parameters, to which PEFT would apply it. Name layers of the attention, such as q_proj, and stacks of "
            f"experts by {STACKS}.",
            code="adapter/unknown-target",
        )


def check_tied(model: PreTrainedModel, found: Iterable[str], option: str) -> None:
    """Refuse a module whose weight is also another one's: the plain model has one tensor for both."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for name in found:
        for parameter in model.get_submodule(name).parameters():
            if len(shared := owners[id(parameter)]) > 1:
                raise ConfigError(
                    f"{option} of the adapter: {name} shares its weight ({' and '.join(shared)} are one tensor), so a "
                    "plain model could not hold the result. Leave it out.",
                    code="adapter/tied-weights",
                )


def _taken_for_experts(model: PreTrainedModel, names: Iterable[str]) -> list[str]:
    """Return the modules whose names PEFT applies to the stacked experts of this family, and those with such a name
    that Transformers renames: PEFT renames their factors once more as it loads them, and loses them (Laguna)."""
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    settings = LoraConfig(target_modules=set(_EXPERTS))
    convert_peft_config_for_transformers(settings, model, None)
    taken = _EXPERTS - set(settings.target_modules or ())
    mapping = get_model_conversion_mapping(model) or ()
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]

    def is_taken(name: str) -> bool:
        end = name.rpartition(".")[2]
        weight = f"{name}.weight"
        return end in taken or (
            end in _EXPERTS and rename_source_key(weight, renamings, [])[0] != weight
        )

    return [name for name in names if is_taken(name)]


def _stacked_parameters(model: nn.Module) -> list[str]:
    """Return parameters of one matrix for each expert; tables of a vision tower have one row along their first axis,
    and the kernels of convolutions are none."""
    kernels = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.modules.conv._ConvNd)
    }
    return [
        name
        for name, each in model.named_parameters()
        if each.dim() == 3 and len(each) > 1 and id(each) not in kernels
    ]


def _share(model: nn.Module, names: Iterable[str]) -> float:
    parts = [model.get_parameter(name).numel() for name in names]
    return sum(parts) / sum(parameter.numel() for parameter in model.parameters())


def floating_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype of the first parameter that holds floating numbers; quantized ones hold integers."""
    return next(p.dtype for p in model.parameters() if p.dtype.is_floating_point)
