"""Diagnoses of recorded rollouts: a last turn that no loss sees, and a limit that answers had to get short for."""

from __future__ import annotations

from .diagnosis import REWARDS, Finding, diagnosis
from .record import LAST, Record, mean, width, windows

NOT_LEARNED = 0.95
"""Share of the last rollouts that end with words that count as the environment's. The executors of this repository
have none: an observation stands in a rollout only if the policy answered it."""
ROLLOUTS = 20
"""Fewest rollouts that are looked at."""
CUT_AT_FIRST = 0.5
"""Share of the first answers that were cut off."""
FEWER_CUT = 0.5
"""Share of these that are still cut off: answers got short enough."""
NEAR_LIMIT = 0.5
"""Mean length as a share of the limit: a policy that has learned to end where its answer does may be far below it. A
limit that is just enough is near it, too, and found in some runs: it punishes right answers at first."""
LONGER_AGAIN = 1.05
"""Mean length as a multiple of the shortest window's from which on answers grow again: the policy has learned to end
first, and learns what to say now."""
UNPAID = 0.25
"""Mean reward as a share of the highest one recorded, up to which a task counts as not learned."""
SHORT_STEPS = 100
"""Steps after which it counts: a policy that learns to end its answers first, and what they say later, has had time."""


@diagnosis(*REWARDS, texts=LAST)
def masked_turn(record: Record) -> Finding | None:
    """Return a finding where rollouts end with words that are no actions, and the reward has not risen."""
    last = record.texts.last
    share = mean([float(not each.policy_ends) for each in last])
    if len(last) < ROLLOUTS or share < NOT_LEARNED or record.rises:
        return None
    evidence = {
        "rollouts": float(len(last)),
        "share that ends with the environment's words": share,
        "turns of the policy in a rollout": mean([float(each.turns) for each in last]),
    }
    if record.values("rollout/turns"):
        evidence["rollout/turns"] = record.last("rollout/turns")
    return Finding(
        sentence=f"{100 * share:.0f} % of the last recorded rollouts end with words that count as the environment's, "
        "which get no gradient, and the reward has not risen: the mask leaves the policy's last answer out, or an "
        "observation is recorded that nobody answered",
        evidence=evidence,
        change=("rollout.executor", "env.use"),
        step=last[-1].step,
    )


@diagnosis("response/truncated", "response/length_mean", *REWARDS, texts=LAST, steps=SHORT_STEPS)
def short_answers(record: Record) -> Finding | None:
    """Return a hint where answers were cut off at first and got nothing for it, and have become short since, near the
    limit, without the reward of a right one.

    It is no finding: a limit that is just enough punishes right answers at first, too, and a run under it that has not
    learned yet has the same lengths and rewards. Who knows the task knows whether right answers fit.
    """
    first, limit = record.texts.first, record.number("rollout.max_new_tokens")
    rewards = [each.reward for each in (*first, *record.texts.last)]
    cut = [each.reward for each in first if each.truncated]
    if len(first) < ROLLOUTS or len(cut) < CUT_AT_FIRST * len(first) or max(cut) > min(rewards):
        return None
    size = width(record.values("reward/mean"))
    was, now = record.first("response/truncated"), record.last("response/truncated", size)
    before, length = record.first("response/length_mean"), record.last("response/length_mean", size)
    gained = (record.last("reward/mean", size) - min(rewards)) / (
        max(rewards) - min(rewards) or 1.0
    )
    shortest = min(windows(record.values("response/length_mean")))
    short = NEAR_LIMIT * (limit or 0.0) <= length < before and length <= LONGER_AGAIN * shortest
    if not limit or now > FEWER_CUT * was or not short or gained > UNPAID:
        return None
    return Finding(
        sentence=f"{100 * was:.0f} % of the first answers were cut off at {limit:g} tokens, and none of these got more "
        f"than the lowest reward; now {100 * now:.0f} % are, answers have {length:.2g} tokens, and the mean reward is "
        f"{100 * gained:.0f} % of the way to the highest. The policy has learned to be short: if right ones "
        "need as many tokens as the limit, or more, it cannot learn them",
        evidence={
            "response/truncated at first": was,
            "response/truncated at last": now,
            "response/length_mean at first": before,
            "response/length_mean at last": length,
            "rollout.max_new_tokens": limit,
            "highest reward": max(rewards),
            "reward/mean at last": record.last("reward/mean", size),
        },
        change=("rollout.max_new_tokens", "rollout.stop", "reward.use"),
        step=first[0].step,
        is_sure=False,
    )
