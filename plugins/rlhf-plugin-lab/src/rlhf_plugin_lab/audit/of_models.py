"""Hypotheses on the model: dtype, rotary base, rounding, head, attention, experts, weights and adapter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlhf_core.lazy import torch

from .case import Case, Gap, Variants
from .changed import (
    attends_to_all,
    groups_of,
    is_tied,
    rope_theta,
    shared_copy,
    with_attention_scale,
    with_dtype,
    with_rope_theta,
    with_rounded_weights,
    with_tied_head,
)
from .forward import Sight
from .lora import between
from .search import log_grid, smallest, smallest_whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MOST = 16
"""Largest number of experts and shifts that are tried."""

_THETAS = log_grid(1e2, 1e8, 19)
_FACTORS = log_grid(0.05, 20.0, 14)
_BITS = (8, 4, 6, 5, 3, 2)


def dtype(case: Case, gap: Gap) -> Variants:
    """Yield readings in types of 16 bits."""
    for kind in (torch.bfloat16, torch.float16):
        name = str(kind).removeprefix("torch.")
        yield name, replace(case.plain, model=with_dtype(case.plain.model, kind))


def rope(case: Case, gap: Gap) -> Variants:
    """Yield the reading with the best other base of rotary positions; none for a model without a single base."""
    model, own = case.plain.model, rope_theta(case.plain.model)
    if own is None:
        return
    found = smallest(
        lambda theta: gap(replace(case.plain, model=with_rope_theta(model, theta))),
        _THETAS,
        gap(case.plain),
    )
    if found is not None:
        changed = with_rope_theta(model, found)
        yield f"rope theta {found:.4g}, not {own:g}", replace(case.plain, model=changed)


def quantized(case: Case, gap: Gap) -> Variants:
    """Yield readings with weights that went through integers, with a scale for each row or group of it."""
    for bits in _BITS:
        for group in groups_of(case.plain.model):
            model = with_rounded_weights(case.plain.model, bits, group)
            scales = "a scale for each " + ("row" if group is None else f"{group} weights")
            yield f"weights of {bits} bits, {scales}", replace(case.plain, model=model)


def tied_head(case: Case, gap: Gap) -> Variants:
    """Yield the reading whose head is the embeddings; none where it is that already."""
    if not is_tied(case.plain.model):
        model = with_tied_head(case.plain.model)
        yield "a head of the embeddings' weights", replace(case.plain, model=model)


def kernel(case: Case, gap: Gap) -> Variants:
    """Yield readings with another attention: a window, later tokens seen, scores scaled; none for a model whose layers
    do not all attend to all."""
    if not attends_to_all(case.plain.model):
        return
    longest = max(len(each.token_ids) for each in case.sequences)
    size = smallest_whole(lambda value: gap(replace(case.plain, window=value)), longest)
    yield f"attention to the last {size} tokens alone", replace(case.plain, window=size)
    yield "attention of the prompt to all of it", replace(case.plain, sight=Sight.PROMPT)
    yield "attention to later tokens", replace(case.plain, sight=Sight.ALL)
    found = smallest(
        lambda value: gap(replace(case.plain, model=with_attention_scale(case.plain.model, value))),
        _FACTORS,
        gap(case.plain),
    )
    if found is not None:
        model = with_attention_scale(case.plain.model, found)
        yield f"attention scores times {found:.4g}", replace(case.plain, model=model)


def routes(case: Case, gap: Gap) -> Variants:
    """Yield readings whose tokens go to other experts; none for a model without them."""
    for words, model in routed(case.plain.model):
        yield words, replace(case.plain, model=model)


def weights(case: Case, gap: Gap) -> Variants:
    """Yield readings with the other weights that the command was given, such as stale ones."""
    for name, model in case.others.items():
        yield f"weights of {name}", replace(case.plain, model=model)


def adapter(case: Case, gap: Gap) -> Variants:
    """Yield the reading of the base, and that with the best factor of the adapter; none for a model without one."""
    if case.base is None:
        return
    base = case.base
    yield "the base without its adapter", replace(case.plain, model=base)
    found = smallest(
        lambda value: gap(replace(case.plain, model=between(base, case.plain.model, value))),
        _FACTORS,
        gap(case.plain),
    )
    if found is not None:
        model = between(base, case.plain.model, found)
        yield f"the adapter times {found:.4g}", replace(case.plain, model=model)


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
