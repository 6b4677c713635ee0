"""Models with one thing changed. Copies share the weights that they do not change."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model's modules around the same parameters."""
    return copy.deepcopy(model, {id(each): each for each in model.parameters()})


def with_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy of a model whose weights and arithmetic have a dtype."""
    return copy.deepcopy(model).to(dtype)


def rope_theta(model: PreTrainedModel) -> float | None:
    """Return the base of a model's rotary positions; None where it has no single one."""
    theta = (getattr(model.config, "rope_parameters", None) or {}).get("rope_theta")
    return None if theta is None else float(theta)


def with_rope_theta(model: PreTrainedModel, theta: float) -> PreTrainedModel:
    """Return a copy of a model with another base of its rotary positions."""
    changed = shared_copy(model)
    config = copy.deepcopy(model.config)
    config.rope_parameters = {**config.rope_parameters, "rope_theta": theta}
    for module in list(changed.modules()):
        for name, child in module.named_children():
            if hasattr(child, "inv_freq"):
                setattr(module, name, type(child)(config=config))
    return changed


def with_rounded_weights(
    model: PreTrainedModel, bits: int, group: int | None = None
) -> PreTrainedModel:
    """Return a copy of a model whose linear layers, but the head, went through symmetric integers of some bits, with a
    scale for each row, or each group of a row: w' = s round(w / s), s = max|w| / (2^(bits-1) - 1)."""
    changed, largest = shared_copy(model), 2 ** (bits - 1) - 1
    head = changed.get_output_embeddings()
    for layer in changed.modules():
        if isinstance(layer, torch.nn.Linear) and layer is not head:
            weight = layer.weight.data
            rows = weight if group is None else weight.reshape(-1, group)
            scale = (rows.abs().amax(dim=1, keepdim=True) / largest).clamp_min(1e-12)
            rounded = ((rows / scale).round() * scale).reshape(weight.shape)
            layer.weight = torch.nn.Parameter(rounded, requires_grad=False)
    return changed


def groups_of(model: PreTrainedModel) -> list[int | None]:
    """Return the sizes of groups that divide every row of the layers that are rounded; None is whole rows."""
    head = model.get_output_embeddings()
    widths = [
        each.in_features
        for each in model.modules()
        if isinstance(each, torch.nn.Linear) and each is not head
    ]
    divisor = math.gcd(*widths) if widths else 1
    return [None, *(size for size in (16, 32, 64, 128) if divisor % size == 0)]


def is_tied(model: PreTrainedModel) -> bool:
    """Return whether the head is the embeddings, or of another shape."""
    head, embeddings = (model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    return head is embeddings or head.shape != embeddings.shape


def with_tied_head(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model whose head has the weights of its embeddings."""
    changed = shared_copy(model)
    changed.get_output_embeddings().weight = changed.get_input_embeddings().weight
    return changed


def attentions_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the attention layers that scale their scores by a number of their own."""
    return [
        each
        for each in model.modules()
        if isinstance(getattr(each, "scaling", None), float) and hasattr(each, "q_proj")
    ]


def with_attention_scale(model: PreTrainedModel, factor: float) -> PreTrainedModel:
    """Return a copy of a model whose attention scores are multiplied by a factor."""
    changed = shared_copy(model)
    for layer in attentions_of(changed):
        object.__setattr__(layer, "scaling", layer.scaling * factor)  # type: ignore[operator]
    return changed


def attends_to_all(model: PreTrainedModel) -> bool:
    """Return whether each layer of a model attends to all tokens before, so that a mask says what is seen."""
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and bool(attentions_of(model))
