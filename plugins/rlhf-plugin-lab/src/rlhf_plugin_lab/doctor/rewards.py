"""Diagnoses of the reward: it says nothing, it is lost again, or it is not what held-out prompts are judged by."""

from __future__ import annotations

from .diagnosis import REWARDS, Finding, diagnosis
from .record import EVALUATIONS, LAST, RISEN, Record, width, windows
from .repeated import RARE, Phrase, phrase_of, same_answer_of
from .standstill import COMPARED, YOUNG, compared

SAME = 1e-9
"""Spread of rewards that is none: float32 holds rewards of size 1 to 6e-8, and equal ones have exactly 0."""
NO_SIGNAL = 0.95
"""Share of groups without signal. Where one group of 20 still has one, a batch of 32 has between 1 and 2."""
LOST = 1.0
"""Fall from the best window, in standard deviations of samples. A window is 5 batches or more: with 32 samples its mean
is off by 0.08, and the best of a hundred windows by 0.25."""
KEPT = 0.25
"""Share of what was gained that may be left where a reward counts as lost."""
APART = 0.5
"""Rise of the training reward and fall of the held-out one, each in standard deviations of samples. Greedy answers of a
model that has learned nothing jump by 0.3 in tiny runs."""


@diagnosis(*REWARDS)
def dead_reward(record: Record) -> Finding | None:
    """Return a finding where all samples of all steps had one reward."""
    means, spreads = record.values("reward/mean"), record.values("reward/std")
    if not means or max(spreads) > SAME or max(means) - min(means) > SAME * max(1.0, abs(means[0])):
        return None
    return Finding(
        sentence=f"every sample of {len(means)} steps had the reward {means[0]:g}, so nothing says which answers are "
        "better. The reward is constant, reads another field than the rows have, or no answer was ever right",
        evidence={
            "reward/mean": means[0],
            "steps": len(means),
            "samples": sum(record.values("rollout/samples")),
        },
        change=("reward.use", "data.train", "rollout.max_new_tokens"),
        step=record.metrics.last_step,
    )


@diagnosis("group/no_signal", *REWARDS)
def equal_groups(record: Record) -> Finding | None:
    """Return a finding where nearly no group ever had samples of different rewards, and the reward has not risen.

    A hint in a run that is young or still has some such groups, and where the task is solved: its prompts are too easy.
    """
    shares = record.values("group/no_signal")
    size = width(shares)
    before, now = record.first("group/no_signal", size), record.last("group/no_signal", size)
    if min(before, now) < NO_SIGNAL or record.rises or not record.spread > SAME:
        return None
    return Finding(
        sentence=f"in {100 * now:.0f} % of the groups all samples have the same reward, and it was so from the start: "
        + (
            "the task is solved, and its prompts are too easy to learn more from"
            if record.is_solved
            else "the samples of a prompt do not differ, or prompts are too easy or too hard for this model"
        ),
        evidence={
            "group/no_signal at first": before,
            "group/no_signal at last": now,
            "rise of reward/mean": record.rise,
        },
        change=("rollout.temperature", "rollout.n_samples_per_prompt", "data.sampler"),
        step=record.series("group/no_signal").steps[-1],
        is_sure=not record.is_solved and len(shares) >= YOUNG and compared(record) <= COMPARED,
    )


@diagnosis(*REWARDS, steps=3 * LAST)
def reward_lost(record: Record) -> Finding | None:
    """Return a finding where the mean reward has fallen back from its best, to about the start or below, or the
    held-out one has, to the start or below for some evaluations.

    A hint where held-out prompts that were asked since are paid the most: batches of older weights may have been bad.
    """
    return _lost_in_training(record) or _lost_held_out(record)


def _lost_in_training(record: Record) -> Finding | None:
    means = windows(record.values("reward/mean"))
    size = width(record.values("reward/mean"))
    now = record.last("reward/mean", size)
    if not means or not record.spread > SAME:
        return None
    best, start, is_back = max(means), means[0], _is_back(record, size)
    if best - now < LOST * record.spread or now - start > KEPT * (best - start):
        return None
    return Finding(
        sentence=f"the mean reward was {best:.3g} and has fallen to {now:.3g} (it began at {start:.3g}): the "
        "policy has lost what it could"
        + (
            ", unless it is back, for held-out prompts asked since are paid the most"
            if is_back
            else ""
        )
        + ". The learning rate is likely too high, or nothing holds the policy near the reference",
        evidence={
            "best reward/mean": best,
            "reward/mean at last": now,
            "reward/mean at first": start,
            "largest reward/std": record.spread,
        },
        change=("actor.adam.lr", "algo.kl.coef", "train.inner_epochs"),
        step=record.series("reward/mean").steps[-1],
        is_sure=not is_back,
    )


def _is_back(record: Record, size: int) -> bool:
    """Return whether held-out prompts, asked since the worst of the last batches, are paid the most there is."""
    worst, _ = min(record.points("reward/mean")[-size:], key=lambda point: point[1])
    asked = [series.steps[-1] for _, series in record.evaluations("/reward") if series.steps]
    return record.is_solved_held_out and min(asked) >= worst


def _lost_held_out(record: Record) -> Finding | None:
    if record.rises or not record.spread > SAME:
        return None
    for name, series in record.evaluations("/reward"):
        values = series.finite()
        if len(values) <= EVALUATIONS:
            continue
        first, best, last = values[0], max(values), max(values[-EVALUATIONS:])
        if best - last >= LOST * record.spread and last <= first:
            return Finding(
                sentence=f"the held-out reward ({name}) was {best:.3g} and is {last:.3g} or less in the last "
                f"{EVALUATIONS} evaluations (it began at {first:.3g}), and the training reward has not risen: the "
                "policy has lost what it could. The learning rate is likely too high, or entropy is gone",
                evidence={
                    f"best {name}": best,
                    f"best of the last {EVALUATIONS}": last,
                    f"{name} at first": first,
                    "largest reward/std": record.spread,
                },
                change=("actor.adam.lr", "algo.loss.entropy_coef", "algo.kl.coef"),
                step=series.steps[-1],
            )
    return None


@diagnosis(*REWARDS, steps=3 * LAST)
def reward_hacking(record: Record) -> Finding | None:
    """Return a finding where the training reward has risen and the held-out one not: it fell far, or it stands still
    while most of the best answers have one phrase that they did not have at first, or nearly all prompts one answer."""
    if record.rise < APART * record.spread or not record.spread > SAME:
        return None
    for name, series in record.evaluations("/reward"):
        values = series.finite()
        if len(values) <= EVALUATIONS:
            continue
        first, last = values[0], max(values[-EVALUATIONS:])
        phrase = phrase_of(record.texts)
        if first - last >= APART * record.spread:
            return _hacked(record, name, first, last, phrase)
        same = same_answer_of(record.texts)
        one_text = phrase is not None or (same is not None and same.before <= RARE)
        if one_text and last - first <= RISEN * record.spread:
            return _hacked(record, name, first, last, phrase)
    return None


def _hacked(record: Record, name: str, first: float, last: float, phrase: Phrase | None) -> Finding:
    seen = ""
    evidence = {
        "rise of reward/mean": record.rise,
        f"{name} at first": first,
        f"best of the last {EVALUATIONS}": last,
    }
    if phrase is not None:
        seen = (
            f". {100 * phrase.share:.0f} % of the best answers contain {phrase.shown()}, "
            f"{100 * phrase.before:.0f} % of those at first"
        )
        evidence |= {"best answers with the phrase": phrase.share, "at first": phrase.before}
    return Finding(
        sentence=f"the training reward has risen by {record.rise:.3g}, and the held-out one ({name}) went from "
        f"{first:.3g} to {last:.3g}: the policy is paid for something else than the task{seen}",
        evidence=evidence,
        change=("reward.use", "algo.kl.coef", "train.steps"),
        step=record.metrics.last_step,
    )
