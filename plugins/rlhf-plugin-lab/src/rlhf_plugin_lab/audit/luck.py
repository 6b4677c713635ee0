"""Gaps by chance: dropout that stayed on, seen where equal beginnings have unequal log-probs, and its rate by size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlhf_core.lazy import NDArray, np, torch

from .case import Case
from .changed import attentions_of, shared_copy
from .forward import Reading, logprobs_of
from .search import log_grid
from .sequences import Recorded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_RATES = log_grid(0.01, 0.6, 14)
_PASSES, _FEW = 3, 8
"""Passes of each of a few sequences."""
_SPREAD_SHARE = 0.2
"""Part of the gap that equal beginnings must differ by: under dropout all of it is chance; a mean of few is less."""
_ALL = 0.7
"""Part of the actions that dropout moves by more than the precision."""
_ALIKE = 0.35
"""Largest distance of two distribution functions of sizes of gaps that count as alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Actions that stand behind equal tokens in several sequences, and are the same token."""

    count: int
    spread: float
    """Mean absolute deviation in nats from the mean of equal ones; 0 for a side that computes alike."""


def repeats_of(side: str, sequences: Sequence[Recorded]) -> Repeats:
    groups: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for each in sequences:
        for place in np.flatnonzero(each.action_mask & np.isfinite(each.logprobs[side])):
            beginning = tuple(each.token_ids[: place + 1].tolist())
            groups[beginning].append(float(each.logprobs[side][place]))
    off = [
        abs(value - np.mean(same)) for same in groups.values() if len(same) > 1 for value in same
    ]
    return Repeats(count=len(off), spread=float(np.mean(off)) if off else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """Evidence for dropout."""

    words: str = ""
    """Empty: they do not look like it."""
    certain: bool = False
    """Whether equal beginnings tell it from other weights, whose gaps have such sizes too."""


def dropout_of(side: str, case: Case, gap: float, allowed: float) -> Luck:
    """Return whether the records look like dropout, with the rate whose gaps are as large.

    They do where most actions are off, no equal beginnings have equal log-probs, and passes of the model with dropout
    have gaps of the same sizes (distance of their distribution functions).
    """
    repeats = repeats_of(side, case.recorded or case.sequences)
    recorded = _sizes(side, case.plain, case.sequences)
    equal = repeats.count and repeats.spread < max(allowed, _SPREAD_SHARE * gap)
    if equal or np.mean(recorded > allowed) < _ALL:
        return Luck()
    distance, rate, place = min(
        (distance, rate, place)
        for place in ("feed-forward layers", "attention", "layers")
        for distance, rate in [_closest(case, recorded, place)]
    )
    if distance > _ALIKE:
        return Luck()
    sizes = f"gaps are as large as those of dropout {rate:.2g} in {place} (distance {distance:.2g})"
    if not repeats.count:
        return Luck(
            words=f"{sizes}, or of other weights: no beginning is recorded twice, which would tell which"
        )
    return Luck(
        words=f"{repeats.count} repeated beginnings differ by {repeats.spread:.3g}, so log-probs are random; {sizes}",
        certain=True,
    )


def _closest(case: Case, recorded: NDArray[np.float64], place: str) -> tuple[float, float]:
    """Return the distance and the rate whose gaps have sizes closest to the recorded ones."""
    found, few = [], case.sequences[:_FEW]
    plains = [logprobs_of(case.plain, each) for each in few]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for rate in _RATES:
            reading = replace(case.plain, model=dropped(case.plain.model, rate, place))
            sizes = np.concatenate(
                [
                    np.abs(logprobs_of(reading, each) - plain)
                    for each, plain in zip(few, plains, strict=True)
                    for _ in range(_PASSES)
                ]
            )
            found.append((distance_of(recorded, sizes[np.isfinite(sizes)]), rate))
    return min(found)


def _sizes(side: str, reading: Reading, sequences: Sequence[Recorded]) -> NDArray[np.float64]:
    gaps = [np.abs(logprobs_of(reading, each) - each.logprobs[side]) for each in sequences]
    every = np.concatenate(gaps)
    return np.asarray(every[np.isfinite(every)])


def distance_of(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the largest difference of two samples' distribution functions (Kolmogorov and Smirnov)."""
    places = np.concatenate([one, other])
    below = [
        np.searchsorted(np.sort(each), places, side="right") / len(each) for each in (one, other)
    ]
    return float(np.abs(below[0] - below[1]).max())


def dropped(model: PreTrainedModel, rate: float, place: str) -> PreTrainedModel:
    """Return a copy of a model with dropout: of attention's weights, behind feed-forward layers, or behind both."""
    changed = shared_copy(model)

    def drop(module: object, given: object, output: torch.Tensor) -> torch.Tensor:
        return torch.dropout(output, rate, True)

    attentions = {id(each) for each in attentions_of(changed)}
    for name, module in changed.named_modules():
        if place == "attention" and id(module) in attentions:
            module.attention_dropout, module.training = rate, True
        if place in ("feed-forward layers", "layers") and name.endswith(".mlp"):
            module.register_forward_hook(drop)
        if place == "layers" and name.endswith(".o_proj"):
            module.register_forward_hook(drop)
    return changed
