"""Models whose tokens go to other experts than their routers say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlhf_core.lazy import torch

from .changed import shared_copy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MOST = 16
"""Largest number of experts and shifts that are tried."""


def routed(model: PreTrainedModel) -> Iterator[tuple[str, PreTrainedModel]]:
    """Yield copies with other routes, and their difference in words; none for a model without routers of top-k."""
    routers = routers_of(model)
    if not routers:
        return
    count, chosen = int(routers[0].num_experts), int(routers[0].top_k)
    for other in range(1, min(count, _MOST) + 1):
        if other != chosen:
            yield f"{other} experts a token, not {chosen}", _with(model, top_k=other)
    if hasattr(routers[0], "norm_topk_prob"):
        on = bool(routers[0].norm_topk_prob)
        words = "not normalized" if on else "normalized"
        yield f"weights of experts {words}", _with(model, norm_topk_prob=not on)
    for shift in range(1, min(count - 1, _MOST) + 1):
        yield f"ids of experts off by {shift}", with_shifted_experts(model, shift)


def routers_of(model: PreTrainedModel) -> list[Any]:
    """Return the modules that choose ``top_k`` of ``num_experts`` by weights of their own."""
    return [
        each
        for each in model.modules()
        if isinstance(getattr(each, "top_k", None), int)
        and isinstance(getattr(each, "num_experts", None), int)
        and isinstance(getattr(each, "weight", None), torch.nn.Parameter)
    ]


def _with(model: PreTrainedModel, **values: int | bool) -> PreTrainedModel:
    changed = shared_copy(model)
    for router in routers_of(changed):
        for name, value in values.items():
            setattr(router, name, value)
    return changed


def with_shifted_experts(model: PreTrainedModel, shift: int) -> PreTrainedModel:
    """Return a copy of a model in which expert ``(e + shift) mod E`` does the work of ``e``."""
    changed = shared_copy(model)
    for router in routers_of(changed):
        count = router.num_experts

        def moved(module: object, given: object, output: Any, count: int = count) -> Any:
            *head, experts = output
            return (*head, (experts + shift) % count)

        router.register_forward_hook(moved)
    return changed
