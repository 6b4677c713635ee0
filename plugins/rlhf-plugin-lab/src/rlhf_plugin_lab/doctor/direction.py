"""Diagnoses of the direction of learning: a policy that is trained away from its reward."""

from __future__ import annotations

import statistics

from .diagnosis import REWARDS, Finding, diagnosis
from .record import Record, width

AGREEING = 0.1
"""Share of the pairs of samples whose order by advantage is that by reward. Group baselines have 1; a critic, a penalty
in the advantage or rewards of several turns mix the order, which takes it toward a half and not below."""
PAIRS, GROUPS = 50, 10
"""Fewest pairs, in as many groups: pairs of one group are not independent."""
LOST = 0.5
"""Share of the first window's reward, above the lowest that was recorded, that is gone in the last half of the run."""
NOISE = 4.0
"""Fall in standard errors of the difference of the two."""
STEPS = 40
"""Steps from which on it counts: the first window has 8 then, and the half 20."""
ALIVE = 0.5
"""Entropy that is left, as a share of the first one: below, a collapse takes the reward with it, whatever the sign."""


@diagnosis(*REWARDS, steps=1, pairs=PAIRS)
def against_reward(record: Record) -> Finding | None:
    """Return a finding where, within groups, samples of a higher reward have the lower advantage."""
    orders = record.orders
    share = orders.agreeing / orders.pairs
    if orders.groups < GROUPS or share > AGREEING:
        return None
    return Finding(
        sentence=f"of {orders.pairs} pairs of recorded samples of one prompt, the one with the higher reward has the "
        f"higher advantage in {100 * share:.0f} % only: the policy is trained away from the reward. A sign is wrong "
        "between the two, in the estimator, or in a penalty that outweighs the reward",
        evidence={
            "pairs": orders.pairs,
            "groups": orders.groups,
            "pairs in the order of the reward": share,
            "rise of reward/mean": record.rise,
        },
        change=("algo.advantage.estimator", "reward.use", "algo.kl.coef"),
        step=orders.step,
    )


@diagnosis("policy/entropy", "advantage/abs_mean", *REWARDS, steps=STEPS, texts=1)
def reward_falls(record: Record) -> Finding | None:
    """Return a finding where the mean reward has fallen from the start, beyond the noise of its batches, although the
    policy still tries other answers. Where prompts come in an order they may get harder, and it says nothing."""
    if (
        record.options.get("data.sampler", "none") != "none"
        or record.options.get("data.shuffle") == "false"
    ):
        return None
    values = record.values("reward/mean")
    start, half = values[: width(values)], values[len(values) // 2 :]
    before, now = statistics.fmean(start), statistics.fmean(half)
    lowest = min(record.texts.rewards)
    error = sum(statistics.variance(part) / len(part) for part in (start, half)) ** 0.5
    gone = before - now
    if gone <= 0.0 or gone < NOISE * error or gone < LOST * (before - lowest):
        return None
    entropy, first = record.last("policy/entropy"), record.first("policy/entropy")
    if entropy < ALIVE * first or not record.last("advantage/abs_mean", len(half)) > 0.0:
        return None
    return Finding(
        sentence=f"the mean reward was {before:.3g} at first and {now:.3g} in the last half, less by "
        f"{gone / (error or 1.0):.2g} standard errors, while {100 * entropy / first:.0f} % of the entropy are "
        "left and answers still differ in reward: the policy is trained away from it. A sign is wrong, of the reward, "
        "the estimator or the loss, or another term, such as a penalty, outweighs the reward",
        evidence={
            "reward/mean at first": before,
            "reward/mean in the last half": now,
            "standard error": error,
            "lowest recorded reward": lowest,
            "policy/entropy at first": first,
            "policy/entropy at last": entropy,
            "advantage/abs_mean": record.last("advantage/abs_mean", len(half)),
        },
        change=("algo.advantage.estimator", "reward.use", "algo.kl.coef", "actor.adam.lr"),
        step=record.series("reward/mean").steps[-1],
    )
