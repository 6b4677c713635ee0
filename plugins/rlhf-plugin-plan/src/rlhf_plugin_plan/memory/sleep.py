"""Memory of a run whose engine sleeps while roles compute: the peak of each phase, and the bytes that move.

A phase counts what is on one GPU at its worst moment. At the *start* engines take all their memory beside the roles'
weights. While *generating* the roles are in host memory. While weights are *delivered* to an engine that has its own,
roles and engine have weights and nothing else. While *training* the engine has nothing but what it cannot give back.
Of the roles' weights and state only as much leaves as the engine needs room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.contracts import Leaving

from ..machine import assumptions as assumed

STAYS = ("CUDA context", "CUDA graphs", "collectives", "versions of the adapter")
"""Parts of a sleeping vLLM."""
EMBEDDED_STAYS = ("weights cast to bfloat16", "weights")
"""Parts of a sleeping embedded engine."""
SERVED = ("weights", "slots for adapters")
"""Parts of vLLM that come back before the rest, for an update."""
TURNS: Mapping[Leaving, str] = {
    "nothing": "the engine sleeps while roles compute",
    "state": "the engine sleeps while roles compute, and their training state leaves while it generates",
    "all": "engine and roles take turns",
}
"""Course of a run whose engine sleeps, by what leaves while it generates."""
PHASES = ("start", "generating", "delivering weights", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessShares:
    """Bytes of one process, by what becomes of them when engine and roles take turns."""

    fixed: float
    """Bytes that never leave, such as CUDA's context."""
    weights: float
    """Bytes of the roles' weights."""
    state: float
    """Bytes of everything else that the roles keep."""
    work: float
    """Bytes of the largest moment of one role."""
    engine: Mapping[str, float]
    """Parts of the engine, if the process is or holds one, and of the trainer for the engine."""
    is_engine: bool
    """Whether the process is an engine and nothing else."""
    emptied: float = 0.0
    """Bytes of the state whose values nobody reads again, such as gradients that were applied: they leave without a
    copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepPeaks:
    """Peaks of one GPU that engine and roles share, in bytes."""

    asleep: Mapping[str, float]
    """Peak of each phase if the engine sleeps."""
    awake: Mapping[str, float]
    """Peak of each phase if nothing sleeps."""
    moved: float
    """Bytes that a step moves to host memory and back, both ways counted."""
    beside: float
    """Bytes of these that come back beside the next passes, which do not need them: the state."""


def sleep_peaks(
    processes: Sequence[ProcessShares],
    *,
    shares_weights: bool,
    keeps_in_host: bool,
    leaving: Leaving = "all",
) -> SleepPeaks:
    """Return the peaks of one GPU.

    Args:
        leaving: what of the roles leaves while the engine generates.
        shares_weights: the engine computes with the trainer's weights, which therefore stay.
        keeps_in_host: the sleeping engine's weights are copied to host memory (level 1), not dropped.
    """
    asleep = dict.fromkeys(PHASES, 0.0)
    awake = dict.fromkeys(PHASES, 0.0)
    moved = beside = 0.0
    for process in processes:
        for phase in PHASES:
            asleep[phase] += _asleep(process, phase, shares_weights=shares_weights, leaving=leaving)
            awake[phase] += _awake(process, phase)
        leaves = process.state - process.emptied if leaving != "nothing" else 0.0
        beside += leaves
        if leaving == "all" and not shares_weights:
            leaves += process.weights
        if process.is_engine and keeps_in_host:
            leaves += sum(process.engine.get(name, 0.0) for name in SERVED)
        moved += 2 * leaves
    return SleepPeaks(asleep=asleep, awake=awake, moved=moved, beside=beside)


def _asleep(process: ProcessShares, phase: str, *, shares_weights: bool, leaving: Leaving) -> float:
    whole = sum(process.engine.values())
    if process.is_engine:
        stays = {"training": STAYS, "delivering weights": (*STAYS, *SERVED)}.get(phase)
        return whole if stays is None else _only(process.engine, stays)
    weights_stay = shares_weights or leaving != "all"
    state = process.state if leaving == "nothing" else 0.0
    held = {
        "start": process.weights + state,
        "generating": state + (process.weights if weights_stay else 0.0),
        "delivering weights": process.weights + (process.state if shares_weights else state),
        "training": process.weights + process.state + process.work,
    }[phase]
    if phase in ("training", "delivering weights") and shares_weights:
        whole = _only(process.engine, EMBEDDED_STAYS)
    elif phase in ("training", "generating") and not shares_weights:
        whole = _only(process.engine, EMBEDDED_STAYS)  # without the bucket of an update
    return process.fixed + (1 + assumed.FRAGMENTATION) * (held + whole)


def _awake(process: ProcessShares, phase: str) -> float:
    whole = sum(process.engine.values())
    if process.is_engine:
        return whole
    held = process.weights + process.state + (process.work if phase == "training" else 0.0)
    return process.fixed + (1 + assumed.FRAGMENTATION) * (held + whole)


def _only(parts: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(parts.get(name, 0.0) for name in names)
