"""Hypotheses on what is done with logits: temperature, bound, truncation and tokens that cannot be sampled."""

from __future__ import annotations

from dataclasses import replace

from .case import Case, Gap, Variants
from .search import log_grid, smallest, smallest_whole

_TEMPERATURES = log_grid(0.05, 20.0, 16)
_CAPS = log_grid(0.5, 500.0, 12)
_TOP_P = (0.02, *(each / 20 for each in range(1, 20)), 0.98, 0.99, 0.995, 0.999)
_MOST_K = 128


def temperature(case: Case, gap: Gap) -> Variants:
    """Yield the reading at the best other temperature. A constant factor of the logits is the same thing."""
    found = smallest(
        lambda value: gap(replace(case.plain, temperature=value)), _TEMPERATURES, gap(case.plain)
    )
    if found is not None:
        factor = case.plain.temperature / found
        yield (
            f"temperature {found:.4g}, not {case.plain.temperature:g}, which is the same as logits times {factor:.4g}",
            replace(case.plain, temperature=found),
        )


def logit_cap(case: Case, gap: Gap) -> Variants:
    """Yield the reading with the best bound of the logits, c tanh(logits / c)."""
    found = smallest(
        lambda value: gap(replace(case.plain, logit_cap=value)), _CAPS, gap(case.plain)
    )
    if found is not None:
        yield f"logits bound to {found:.4g} by tanh", replace(case.plain, logit_cap=found)


def top_p(case: Case, gap: Gap) -> Variants:
    """Yield the reading without top-p, and that with the best one."""
    if case.plain.top_p < 1.0:
        yield f"no top-p, not {case.plain.top_p:g}", replace(case.plain, top_p=1.0)
    found = smallest(lambda value: gap(replace(case.plain, top_p=value)), _TOP_P, gap(case.plain))
    if found is not None:
        yield f"top-p {found:.3g}, not {case.plain.top_p:g}", replace(case.plain, top_p=found)


def top_k(case: Case, gap: Gap) -> Variants:
    """Yield the reading without top-k, and that with the best one."""
    if case.plain.top_k:
        yield f"no top-k, not {case.plain.top_k}", replace(case.plain, top_k=0)
    found = smallest_whole(lambda value: gap(replace(case.plain, top_k=value)), _MOST_K)
    yield f"top-k {found}, not {case.plain.top_k}", replace(case.plain, top_k=found)


def eos(case: Case, gap: Gap) -> Variants:
    """Yield the readings in which a special token cannot be sampled, or none of them can."""
    for name, token in case.special.items():
        yield (
            f"token {token}, {name}, banned",
            replace(case.plain, banned=(*case.plain.banned, token)),
        )
    if len(set(case.special.values())) > 1:
        tokens = tuple(sorted(set(case.special.values())))
        yield (
            f"tokens {', '.join(map(str, tokens))} banned",
            replace(case.plain, banned=(*case.plain.banned, *tokens)),
        )
