"""Diagnoses and findings as data, and the look of all diagnoses at a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from .record import FEWEST, Record

REWARDS = ("reward/mean", "reward/std")
"""Metrics of rewards, which most diagnoses look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault of a run."""

    sentence: str
    """Description of what is so and why the run cannot learn from it, without the last period."""
    evidence: Mapping[str, float]
    """The numbers that say so, by what they are."""
    change: Sequence[str]
    """Options to change, the likeliest first."""
    step: int
    """A step at which it is to be seen."""
    is_sure: bool = True
    """Whether no healthy run looks so; otherwise it is a hint: the records alone do not tell the two apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One reason for which a run does not learn."""

    name: str
    needs: Sequence[str]
    """Metrics without which it cannot be looked for; of a name with ``|`` one of its parts is enough."""
    find: Callable[[Record], Finding | None]
    """Returns what is wrong; None: nothing that this diagnosis is sure of."""
    steps: int = FEWEST
    """Fewest steps with these metrics."""
    texts: int = 0
    """Fewest steps with recorded rollouts."""
    pairs: int = 0
    """Fewest pairs of samples of one prompt with recorded tokens."""


def diagnosis(
    *needs: str, steps: int = FEWEST, texts: int = 0, pairs: int = 0
) -> Callable[[Callable[[Record], Finding | None]], Diagnosis]:
    """Return a decorator that makes a function the diagnosis of its name; see ``Diagnosis`` for the arguments."""
    return lambda find: Diagnosis(
        name=find.__name__, needs=needs, find=find, steps=steps, texts=texts, pairs=pairs
    )


def diagnoses_in(*modules: ModuleType) -> list[Diagnosis]:
    """Return the diagnoses that modules define, in order."""
    return [
        each for module in modules for each in vars(module).values() if isinstance(each, Diagnosis)
    ]


@dataclass(slots=True)
class Verdict:
    """Findings and hints of the diagnoses, and names of those that could not look."""

    found: dict[str, Finding] = field(default_factory=dict)
    """Name of the diagnosis -> its finding."""
    hints: dict[str, Finding] = field(default_factory=dict)
    """Name of the diagnosis -> what may be healthy, and what a look at the task decides."""
    looked_at: list[str] = field(default_factory=list)
    not_looked_at: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> names of diagnoses."""


def diagnose(record: Record, diagnoses: Sequence[Diagnosis]) -> Verdict:
    """Return the verdict of the diagnoses on a record."""
    verdict = Verdict()
    for each in diagnoses:
        reason = _missing(record, each)
        if reason:
            verdict.not_looked_at.setdefault(reason, []).append(each.name)
            continue
        verdict.looked_at.append(each.name)
        finding = each.find(record)
        if finding is not None:
            (verdict.found if finding.is_sure else verdict.hints)[each.name] = finding
    return verdict


def _missing(record: Record, diagnosis: Diagnosis) -> str:
    """Return what a diagnosis lacks; empty: nothing."""
    for need in diagnosis.needs:
        count = max(len(record.series(name).values) for name in need.split("|"))
        if count == 0:
            return f"metrics.jsonl has no {need.replace('|', ' or ')}"
        if count < diagnosis.steps:
            return f"fewer than {diagnosis.steps} steps"
    if record.texts.steps < diagnosis.texts:
        return f"samples.jsonl has fewer than {diagnosis.texts} steps (--log.samples)"
    if record.orders.pairs < diagnosis.pairs:
        return (
            f"fewer than {diagnosis.pairs} pairs of samples of one prompt have recorded tokens "
            "(--observers.use token_files, --log.samples)"
        )
    return ""
