"""Mixtures of experts as Transformers describes them: routers, stacks of experts, and the family's balancing loss."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError

LOSS = "load_balancing_loss_func"
"""Name of the function in the module of a family whose loss Transformers adds to that of its labels."""
ARGUMENTS = ("gate_logits", "num_experts", "top_k", "attention_mask")
"""Its arguments; a family whose function has others has a formula of its own."""
BIAS = "e_score_correction_bias"
"""Name of what is added to a router's scores before experts are chosen. Its owners moved it after each update, by the
load, in place of a loss; Transformers has no rule for it."""


class Router(NamedTuple):
    """A module that scores the experts of one layer."""

    module: nn.Module
    place: int
    """Place of the logits in what it returns; a router may return nothing else."""


def routers_of(model: PreTrainedModel) -> list[Router]:
    """Return the routers whose logits Transformers records as ``router_logits``, in the order of the layers."""
    found: dict[int, Router] = {}
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            recorded = part.can_record_outputs.get("router_logits", ())
            for recorder in recorded if isinstance(recorded, list | tuple) else [recorded]:
                for module in _recorded(part, recorder):
                    found.setdefault(id(module), Router(module, recorder.index))
    return list(found.values())


# Any: Transformers' OutputRecorder.
def _recorded(part: PreTrainedModel, recorder: Any) -> Iterator[nn.Module]:
    """Yield the modules whose output a recorder takes."""
    layer = recorder.layer_name
    for name, module in part.named_modules():
        if isinstance(module, recorder.target_class) and (
            layer is None or f".{layer.strip('.')}." in f".{name}."
        ):
            yield module


def stacks_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules with the stacked experts of a layer: they are called with hidden states, ``top_k_index`` and
    ``top_k_weights``, and have ``num_experts``."""
    return [module for module in model.modules() if _is_stack(module)]


def _is_stack(module: nn.Module) -> bool:
    named = list(inspect.signature(type(module).forward).parameters)
    return named[1:4] == ["hidden_states", "top_k_index", "top_k_weights"] and hasattr(
        module, "num_experts"
    )


def has_experts(model: PreTrainedModel) -> bool:
    """Return whether a model is a mixture of experts."""
    return bool(routers_of(model) or stacks_of(model))


def num_biases(model: nn.Module) -> int:
    """Return the number of modules with a bias by which the load was balanced."""
    return sum(hasattr(module, BIAS) for module in model.modules())


def top_k_of(model: PreTrainedModel) -> int:
    """Return the number of experts of each token, as the family's balancing loss counts them."""
    return int(_named(model, "num_experts_per_tok") or 1)


def coefficient_of(model: PreTrainedModel, wanted: float | None) -> float:
    """Return the factor of the balancing loss, 0 for none.

    Args:
        wanted: the factor; None: the model's ``router_aux_loss_coef`` if its ``output_router_logits`` is true, else 0,
            as in Transformers.

    Raises:
        ConfigError: a factor other than 0 is wanted of a model without experts, or of a family whose loss is not known.
    """
    family = type(model).__name__
    if wanted is not None and not has_experts(model):
        raise ConfigError(
            f"router_aux_loss {wanted:g}: expected a mixture of experts; {family} has none. Leave it out.",
            code="model/no-experts",
        )
    source = "router_aux_loss"
    coefficient = wanted or 0.0
    if wanted is None and _named(model, "output_router_logits"):
        source = "router_aux_loss_coef of its config.json, which has output_router_logits true:"
        coefficient = float(_named(model, "router_aux_loss_coef") or 0.0)
    if not coefficient:
        return 0.0
    function = getattr(sys.modules[type(model).__module__], LOSS, None)
    arguments = () if function is None else tuple(inspect.signature(function).parameters)
    if arguments != ARGUMENTS or not routers_of(model):
        raise ConfigError(
            f"{source} {coefficient:g}: expected a family with the balancing loss of Switch Transformers in "
            f"Transformers ({LOSS}); {family} has none. Set --actor.router_aux_loss 0.",
            code="model/unknown-balancing-loss",
        )
    return coefficient


# Any: an attribute of a model or its configuration.
def _named(model: PreTrainedModel, name: str) -> Any:
    """Return what the model, its configuration or that of its text calls so; None: nothing."""
    for place in (model, model.config, model.config.get_text_config()):
        value = getattr(place, name, None)
        if value is not None:
            return value
    return None
