"""Verdicts on one side's recorded log-probs: healthy, a cause with the gap before and after, or the gap's pattern."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_core.lazy import NDArray, np

from .case import Case, Hypothesis
from .forward import Reading, logprobs_of
from .hypotheses import HYPOTHESES
from .luck import dropout_of
from .precision import PRECISION
from .sequences import Recorded

_BELOW_UNIFORM = 1.0
"""Nats per action by which tokens are less likely than at random: text of a model is more likely under any relative."""

EXPLAINED = 0.1
"""Share of the gap that a cause may leave."""
WITHIN = 0.5
"""Share that it may leave where what is left is within the precision of the dtype."""
ROUNDED = 0.7
"""Share that a dtype may leave: kernels of one dtype round alike in part, as weights are the same and sums are not."""
_EXACT = 0.1 * PRECISION
"""Gap below which two causes explain alike."""
_FEW, _FEW_TOKENS = 4, 4096
"""Sequences of a search, and the tokens that they have together at most, but for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Judgement of a side."""

    side: str
    gap: float
    """Mean absolute difference from the plain forward, in nats per action."""
    allowed: float
    """Gap that the dtype explains."""
    cause: str = ""
    """Name of a hypothesis; empty: healthy, or none explains the gap."""
    detail: str = ""
    """The cause in words."""
    left: float = 0.0
    """Mean gap that the best reading leaves."""
    also: tuple[str, ...] = ()
    """Other causes that explain the gap as well."""
    pattern: str = ""
    """Places of the gap in words; empty: healthy."""

    @property
    def healthy(self) -> bool:
        """Whether the gap is within the precision of the dtype."""
        return self.gap <= self.allowed


def judge(
    side: str, case: Case, allowed: float, hypotheses: Mapping[str, Hypothesis] = HYPOTHESES
) -> Verdict:
    """Return the verdict on a side: of all readings the one that leaves the smallest gap, if that explains it.
    Where none does, the gap may be by chance, or the tokens not the model's.

    Args:
        hypotheses: causes that are tried.
    """
    gap = gap_of(side, case.plain, case.sequences)
    if gap <= allowed:
        return Verdict(side=side, gap=gap, allowed=allowed)
    pattern = pattern_of(side, case.plain, case.sequences, allowed)
    unknown = Verdict(side=side, gap=gap, allowed=allowed, pattern=pattern)
    found, closest = _tried(side, case, gap, allowed, hypotheses)
    if found:
        return replace(_best(found, unknown), allowed=allowed)
    unknown = replace(unknown, left=closest)
    detail = unlikely_of(side, case)
    if detail:
        return replace(unknown, cause="tokenizer", detail=detail)
    luck = dropout_of(side, case, gap, allowed)
    if luck.certain:
        return replace(unknown, cause="dropout", detail=luck.words)
    return replace(unknown, pattern=f"{pattern}; {luck.words}" if luck.words else pattern)


def _best(found: Sequence[Verdict], unknown: Verdict) -> Verdict:
    """Return the verdict that leaves least, of those that are exact the first, with the names of all as good."""
    least = min(each.left for each in found)
    good = [each for each in found if each.left <= max(2.0 * least, _EXACT)]
    also = tuple(each.cause for each in good[1:])
    return replace(good[0], also=also, pattern=unknown.pattern)


def _tried(
    side: str, case: Case, gap: float, allowed: float, hypotheses: Mapping[str, Hypothesis]
) -> tuple[list[Verdict], float]:
    """Return the verdict of each hypothesis that explains the gap, and the smallest gap that any leaves."""
    few = few_of(case.sequences)

    def searched(reading: Reading) -> float:
        return gap_of(side, reading, few)

    closest, found = gap, []
    for name, variants in hypotheses.items():
        ways = [
            (searched(reading), detail, reading) for detail, reading in variants(case, searched)
        ]
        if not ways:
            continue
        _, detail, reading = min(ways, key=lambda way: way[0])
        left = gap_of(side, reading, case.sequences)
        closest = min(closest, left)
        share = ROUNDED if name == "dtype" else EXPLAINED
        if left <= share * gap or (left <= allowed and left <= WITHIN * gap):
            found.append(
                Verdict(side=side, gap=gap, allowed=allowed, cause=name, detail=detail, left=left)
            )
    return found, closest


def few_of(sequences: Sequence[Recorded]) -> list[Recorded]:
    """Return the sequences that a search looks at: a few of all lengths, the longest that are not too long first."""
    ordered = sorted(sequences, key=lambda each: len(each.token_ids), reverse=True)
    spread = [
        ordered[round(place)] for place in np.linspace(0, len(ordered) - 1, min(_FEW, len(ordered)))
    ]
    kept: list[Recorded] = []
    for each in reversed(spread):
        if not kept or sum(len(other.token_ids) for other in (*kept, each)) <= _FEW_TOKENS:
            kept.append(each)
    return kept


def gap_of(side: str, reading: Reading, sequences: Sequence[Recorded]) -> float:
    """Return the mean absolute difference in nats of a reading and what a side recorded; infinite where a recorded
    action is impossible under the reading."""
    return float(np.mean(np.concatenate([gaps_of(side, reading, each) for each in sequences])))


def gaps_of(side: str, reading: Reading, sequence: Recorded) -> NDArray[np.float64]:
    """Return the absolute differences in nats at the actions that a side recorded."""
    mask = sequence.action_mask & np.isfinite(sequence.logprobs[side])
    return np.asarray(np.abs(logprobs_of(reading, sequence) - sequence.logprobs[side])[mask])


def pattern_of(side: str, reading: Reading, sequences: Sequence[Recorded], allowed: float) -> str:
    """Return in words which actions are off, from which depth, in which turns, and whether it grows with depth."""
    depths: list[int] = []
    turns: set[int] = set()
    early: list[float] = []
    late: list[float] = []
    count = 0
    for sequence in sequences:
        mask = sequence.action_mask & np.isfinite(sequence.logprobs[side])
        places = np.flatnonzero(mask)
        gaps = np.abs(logprobs_of(reading, sequence) - sequence.logprobs[side])[mask]
        begins = sequence.action_mask & ~np.concatenate([[False], sequence.action_mask[:-1]])
        off = places[gaps > allowed]
        depths += off.tolist()
        turns |= set(np.cumsum(begins)[off].tolist())
        half, count = (len(gaps) + 1) // 2, count + len(gaps)
        early += gaps[:half].tolist()
        late += gaps[half:].tolist()
    return (
        f"{len(depths)} of {count} actions, from depth {min(depths, default=0)} on, in turns "
        f"{', '.join(map(str, sorted(turns)))}; mean gap {np.mean(early):.3g} in first halves, "
        f"{np.mean(late or early):.3g} in last ones"
    )


def unlikely_of(side: str, case: Case) -> str:
    """Return in words that recorded tokens are less likely than uniform ones; empty where they are not."""
    plain = np.concatenate([logprobs_of(case.plain, each) for each in case.sequences])
    recorded = np.concatenate([each.logprobs[side] for each in case.sequences])
    uniform = -math.log(int(case.plain.model.config.get_text_config().vocab_size))
    mean = float(np.nanmean(plain))
    if mean > uniform - _BELOW_UNIFORM or float(np.nanmean(recorded)) < mean + _BELOW_UNIFORM:
        return ""
    return (
        f"the recorded ids have {mean:.3g} nats under the model, less than uniform ones ({uniform:.3g}): ids of "
        "another tokenizer, or weights of another model"
    )
