"""Verdicts on one side's recorded log-probs: healthy, a cause with the gap before and after, or the gap's pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_core.lazy import NDArray, np

from .forward import Reading, logprobs_of
from .hypotheses import HYPOTHESES, Case
from .sequences import Recorded

PRECISION = 1e-4
"""Mean gap in nats that two computations in float32 may have; tiny models have 1e-7 to 1e-6, deep ones more."""
EXPLAINED = 0.1
"""Share of the gap that a cause may leave."""
ROUNDED = 0.7
"""Share that a dtype may leave: kernels of one dtype round alike in part, as weights are the same and sums are not."""


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
    pattern: str = ""
    """Places of the gap in words; empty: healthy."""

    @property
    def healthy(self) -> bool:
        """Whether the gap is within the precision of the dtype."""
        return self.gap <= self.allowed


def judge(side: str, case: Case, allowed: float) -> Verdict:
    """Return the verdict on a side: of all readings the one that leaves the smallest gap, if that explains it."""
    gap = gap_of(side, case.plain, case.sequences)
    if gap <= allowed:
        return Verdict(side=side, gap=gap, allowed=allowed)
    pattern = pattern_of(side, case.plain, case.sequences, allowed)
    best = Verdict(side=side, gap=gap, allowed=allowed, left=gap, pattern=pattern)
    closest = gap
    for name, variants in HYPOTHESES.items():
        for detail, reading in variants(case):
            left = gap_of(side, reading, case.sequences)
            enough = (ROUNDED if name == "dtype" else EXPLAINED) * gap
            closest = min(closest, left)
            if left <= enough and (left < best.left or not best.cause):
                best = Verdict(
                    side=side,
                    gap=gap,
                    allowed=allowed,
                    cause=name,
                    detail=detail,
                    left=left,
                    pattern=pattern,
                )
    return best if best.cause else replace(best, left=closest)


def gap_of(side: str, reading: Reading, sequences: Sequence[Recorded]) -> float:
    """Return the mean absolute difference in nats of a reading and what a side recorded; infinite where a recorded
    action is impossible under the reading."""
    return float(np.mean(np.concatenate([_gaps(side, reading, each) for each in sequences])))


def _gaps(side: str, reading: Reading, sequence: Recorded) -> NDArray[np.float64]:
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
        gaps, places = _gaps(side, reading, sequence), np.flatnonzero(mask)
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
