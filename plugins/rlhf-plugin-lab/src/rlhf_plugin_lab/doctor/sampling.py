"""Diagnoses of what is trained on: samples of other weights, and steps that are left with nothing."""

from __future__ import annotations

from .diagnosis import Diagnosis, Finding
from .record import FEWEST, LAST, Record

LITTLE_LEFT = 0.1
"""Share of the data that is left after importance weighting of tokens (``mismatch/ess``). Runs that learn from samples
a few versions old have 0.5 or more."""
EMPTY = 0.5
"""Share of the last steps that had nothing to train on."""
DROPPED = 0.9
"""Share of finished episodes that filters drop. Dynamic sampling drops 0.3 to 0.7 by design."""


def other_weights(record: Record) -> Finding | None:
    """Return a finding where samples are of a distribution that the trainer does not have."""
    left = record.last("mismatch/ess")
    if left > LITTLE_LEFT or record.rises:
        return None
    age = record.last("rollout/staleness_mean") if record.values("rollout/staleness_mean") else 0.0
    cause = (
        f"samples are {age:.2g} versions old on average, and the policy moves too far between versions"
        if age > 0.0
        else "sampler and trainer disagree about equal weights, as by precision or by sampling options"
    )
    first = ("rollout.max_staleness",) if age > 0.0 else ("engine.name", "rollout.top_p")
    return Finding(
        sentence=f"only {100 * left:.2g} % of the data are left once tokens are weighted by trainer against "
        f"sampler, and the "
        f"reward has not risen: {cause}",
        evidence={
            "mismatch/ess": left,
            "mismatch/logprob_diff_mean": record.last("mismatch/logprob_diff_mean"),
            "rollout/staleness_mean": age,
        },
        change=(*first, "actor.adam.lr", "algo.correction.kind"),
        step=record.series("mismatch/ess").steps[-1],
    )


def empty_steps(record: Record) -> Finding | None:
    """Return a finding where most of the last steps trained on nothing."""
    last = record.metrics.last_step
    empty = [step for step in record.series("train/empty_batch").steps if step > last - FEWEST]
    share = len(empty) / FEWEST
    if last < FEWEST or share < EMPTY:
        return None
    return Finding(
        sentence=f"{len(empty)} of the last {FEWEST} steps had nothing to train on: filters dropped every group",
        evidence={"empty steps": len(empty), "steps": FEWEST},
        change=("rollout.filters", "rollout.max_refills", "data.sampler"),
        step=empty[-1],
    )


def nearly_all_dropped(record: Record) -> Finding | None:
    """Return a finding where filters drop nearly all that was sampled, and the reward has not risen."""
    steps = sorted(record.fates)[-FEWEST:]
    trained = sum(record.fates[step]["trained"] for step in steps)
    reasons: dict[str, int] = {}
    for step in steps:
        for reason, dropped in record.fates[step]["dropped"].items():
            reasons[reason] = reasons.get(reason, 0) + dropped["episodes"]
    dropped_in_all = sum(reasons.values())
    total = trained + dropped_in_all
    if len(steps) < FEWEST or not total or dropped_in_all / total < DROPPED or record.rises:
        return None
    reason = max(reasons, key=lambda each: reasons[each])
    return Finding(
        sentence=f"{100 * dropped_in_all / total:.0f} % of the episodes of the last {FEWEST} steps were dropped, "
        f"most of them "
        f"for {reason[:60]!a}, and the reward has not risen",
        evidence={"dropped episodes": dropped_in_all, "trained episodes": trained},
        change=("rollout.filters", "rollout.max_staleness", "data.sampler"),
        step=steps[-1],
    )


_STEPS = "reward/mean|train/empty_batch|policy/grad_norm"
"""A metric of every step. Where filters drop all, a step has no rewards, and may still train its entropy."""
DIAGNOSES = (
    Diagnosis(
        name="other_weights",
        needs=("mismatch/ess", "reward/mean", "reward/std"),
        find=other_weights,
        steps=2 * LAST,
    ),
    Diagnosis(name="empty_steps", needs=(_STEPS,), find=empty_steps, steps=1),
    Diagnosis(
        name="nearly_all_dropped",
        needs=(_STEPS,),
        find=nearly_all_dropped,
        steps=1,
    ),
)
