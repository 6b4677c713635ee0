"""Hypotheses of an audit: for each cause, the readings of a sequence that the faulty side may have computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlhf_core.lazy import torch

from .forward import (
    Reading,
    with_dtype,
    with_rope_theta,
    with_rounded_weights,
    with_tied_head,
)
from .sequences import Recorded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
TOP_P = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
THETAS = (1e3, 1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
MOST_PADS, MOST_GAP, MOST_KEPT = 8, 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plain reading of sequences, and what a hypothesis may need beside it."""

    plain: Reading
    sequences: Sequence[Recorded]
    special: Mapping[str, int]
    """Ids of the tokens ``pad`` and ``eos``, where the model's folder has them."""
    others: Mapping[str, PreTrainedModel]
    """Name -> other weights that a side may have had."""


Variants = Iterator[tuple[str, Reading]]
"""A cause in words, and its reading."""


def temperature(case: Case) -> Variants:
    """Yield readings at other temperatures. A constant factor of the logits is the same thing."""
    for value in TEMPERATURES:
        if value != case.plain.temperature:
            yield f"temperature {value:g}", replace(case.plain, temperature=value)


def top_p(case: Case) -> Variants:
    """Yield readings with other masses of the most probable tokens."""
    for value in TOP_P:
        if value != case.plain.top_p:
            yield f"top-p {value:g}", replace(case.plain, top_p=value)


def dtype(case: Case) -> Variants:
    """Yield readings in types of 16 bits."""
    for kind in (torch.bfloat16, torch.float16):
        name = str(kind).removeprefix("torch.")
        yield name, replace(case.plain, model=with_dtype(case.plain.model, kind))


def rope(case: Case) -> Variants:
    """Yield readings with other bases of rotary positions; none for a model without a single base."""
    own = (getattr(case.plain.model.config, "rope_parameters", None) or {}).get("rope_theta")
    for theta in THETAS if own is not None else ():
        if theta != own:
            model = with_rope_theta(case.plain.model, theta)
            yield f"rope theta {theta:g}, not {own:g}", replace(case.plain, model=model)


def quantized(case: Case) -> Variants:
    """Yield readings with weights that went through integers."""
    for bits in (8, 4):
        model = with_rounded_weights(case.plain.model, bits)
        yield f"weights of {bits} bits", replace(case.plain, model=model)


def tied_head(case: Case) -> Variants:
    """Yield the reading whose head is the embeddings; none where it is that already."""
    model = case.plain.model
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        yield "a head of the embeddings' weights", replace(case.plain, model=with_tied_head(model))


def positions(case: Case) -> Variants:
    """Yield readings with a gap of positions between prompt and actions. A shift of all is none to relative ones."""
    for gap in (-1, *range(1, MOST_GAP + 1)):
        yield f"positions of actions off by {gap}", replace(case.plain, position_gap=gap)


def padding(case: Case) -> Variants:
    """Yield readings with padding that is attended to."""
    pad = case.special.get("pad")
    if pad is None:
        return
    for count in range(1, MOST_PADS + 1):
        yield f"{count} pads attended to", replace(case.plain, pads=(pad,) * count)


def template(case: Case) -> Variants:
    """Yield the reading without the prompt's first token, as a template with a beginning of text or without."""
    yield "the prompt's first token missing", replace(case.plain, drop_first=1)


def context(case: Case) -> Variants:
    """Yield readings that see an end of the prompt alone."""
    longest = max(sequence.num_prompt for sequence in case.sequences)
    for kept in range(1, min(longest, MOST_KEPT + 1)):
        yield f"the last {kept} tokens of the prompt alone", replace(case.plain, keep_prompt=kept)


def eos(case: Case) -> Variants:
    """Yield the reading in which the model's end of text cannot be sampled."""
    end = case.special.get("eos")
    if end is not None:
        yield f"token {end}, the end of text, banned", replace(case.plain, banned=(end,))


def weights(case: Case) -> Variants:
    """Yield readings with the other weights that the command was given: stale ones, or a base without its adapter."""
    for name, model in case.others.items():
        yield f"weights of {name}", replace(case.plain, model=model)


HYPOTHESES: Mapping[str, Callable[[Case], Variants]] = {
    each.__name__: each
    for each in (
        temperature,
        top_p,
        dtype,
        rope,
        quantized,
        tied_head,
        positions,
        padding,
        template,
        context,
        eos,
        weights,
    )
}
"""Cause -> its readings, in the order in which the first of two that explain alike is named."""
