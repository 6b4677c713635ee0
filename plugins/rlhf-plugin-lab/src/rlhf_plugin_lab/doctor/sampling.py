"""Diagnoses of what is trained on: samples of other weights, and steps that are left with nothing."""

from __future__ import annotations

import math
import statistics

from .diagnosis import REWARDS, Finding, diagnosis
from .record import FEWEST, LAST, Record

LITTLE_LEFT = 0.1
"""Share of the data that is left after importance weighting of tokens (``mismatch/ess``). Runs that learn from samples
a few versions old have 0.5 or more."""
_GAP = "mismatch/logprob_diff_mean"
APART = 0.02
"""Difference of the log-probs of sampler and trainer, in nats per token. Equal weights have 1e-7 in float32 and up to
0.02 in bfloat16; a run ends by itself at ``rollout.max_mismatch``, 0.2."""
GROWN = 10.0
"""Growth of the difference since the first step."""
FOLLOWS = 0.1
"""Least difference in the first half, as a share of the last: weights that are not delivered are apart from the second
step on, and further at each. A few last steps alone are another trouble."""
EMPTY = 0.5
"""Share of the last steps that had nothing to train on."""
DROPPED = 0.9
"""Share of finished episodes that filters drop. Dynamic sampling drops 0.3 to 0.7 by design."""
_STEPS = "reward/mean|train/empty_batch|policy/grad_norm"
"""A metric of every step. Where filters drop all, a step has no rewards, and may still train its entropy."""


@diagnosis("mismatch/ess", *REWARDS, steps=2 * LAST)
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
        f"sampler, and the reward has not risen: {cause}",
        evidence={
            "mismatch/ess": left,
            "mismatch/logprob_diff_mean": record.last("mismatch/logprob_diff_mean"),
            "rollout/staleness_mean": age,
        },
        change=(*first, "actor.adam.lr", "algo.correction.kind"),
        step=record.series("mismatch/ess").steps[-1],
    )


@diagnosis(_GAP)
def old_weights(record: Record) -> Finding | None:
    """Return a finding where the sampler's log-probs leave the trainer's step by step, although samples are recorded as
    of the newest weights.

    At the first step both have the weights that the run began with, so their difference is that of two programs. It
    grows only if the sampler's weights stay behind, or by what ``rollout.top_p`` leaves out.
    """
    ages = dict(record.points("rollout/staleness_mean"))
    pairs = [(step, gap) for step, gap in record.points(_GAP) if not ages.get(step)]
    if len(pairs) < FEWEST:
        return None
    first, half = pairs[0][1], len(pairs) // 2
    middle, last = (
        statistics.median(gap for _, gap in part) for part in (pairs[:half], pairs[-LAST:])
    )
    if last - _left_out(record) < max(APART, GROWN * first) or middle < FOLLOWS * last:
        return None
    return Finding(
        sentence=f"sampler and trainer agreed to {first:.2g} nats per token at the first step and are {last:.2g} apart "
        "now, on samples that are recorded as of the newest weights: the sampler still has older ones",
        evidence={
            f"{_GAP} at first": first,
            f"{_GAP}, median of the first half": middle,
            f"{_GAP} at last": last,
            "mismatch/ess": record.last("mismatch/ess"),
            "steps": len(pairs),
        },
        change=("rollout.check_weights", "engine.name", "rollout.max_mismatch"),
        step=pairs[-1][0],
    )


def _left_out(record: Record) -> float:
    """Return how far apart, in nats per token, the same weights are because the sampler leaves tokens out.

    It divides by the sum of the probabilities that are left, at least ``top_p``: by more the more evenly the policy
    draws. What ``top_k`` and ``min_p`` leave has no bound.
    """
    if record.number("rollout.top_k") or record.number("rollout.min_p"):
        return math.inf
    top_p = record.number("rollout.top_p")
    return -math.log(top_p) if top_p is not None and 0.0 < top_p < 1.0 else 0.0


@diagnosis(_STEPS, steps=1)
def empty_steps(record: Record) -> Finding | None:
    """Return a finding where most of the last steps trained on nothing; a hint where the task is solved."""
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
        is_sure=not record.is_solved,
    )


@diagnosis(_STEPS, steps=1)
def nearly_all_dropped(record: Record) -> Finding | None:
    """Return a finding where filters drop nearly all that was sampled, and the reward has not risen.

    A hint where most steps still have something to train on, for then it costs samples and not learning, and where the
    task is solved, for then there is nothing left to train on.
    """
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
    idle = sum(not record.fates[step]["trained"] for step in steps)
    return Finding(
        sentence=f"{100 * dropped_in_all / total:.0f} % of the episodes of the last {FEWEST} steps were dropped, "
        f"most of them for {reason[:60]!a}, and the reward has not risen. {idle} steps had nothing left to train on",
        evidence={
            "dropped episodes": dropped_in_all,
            "trained episodes": trained,
            "steps without any": idle,
        },
        change=("rollout.filters", "rollout.max_staleness", "data.sampler"),
        step=steps[-1],
        is_sure=idle >= EMPTY * len(steps) and not record.is_solved,
    )
