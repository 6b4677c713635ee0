"""Diagnosis of labels that are wrong in part: training rows on which a model does worse than on held-out ones.

A wrong label alone looks like a hard row. What tells is a held-out set whose labels are right: the model that learns
the task does well there, and the training rows do not agree with it, although they were trained on. Wrong labels in
both sets leave no trace.
"""

from __future__ import annotations

import statistics

from ..recorded.metrics import Series
from .diagnosis import REWARDS, Finding, diagnosis
from .examples import ACCURACIES
from .record import LAST, Record, width

EVALUATIONS = 3
"""Fewest last evaluations that are all better than training."""
WITHIN = 2.0
"""Standard deviations of a group's rewards that the most probable answer may be above the mean of the samples. An
answer that a prompt's samples give in half of the cases or more is above their mean by at most one."""
ERRORS = 3.0
"""Standard errors of the difference beyond that."""
LEAST = 0.05
"""Least difference in accuracy, or of rewards in units of the range that was recorded: one label in twenty."""
WORSE = 1.25
"""Loss of training rows as a multiple of that of held-out ones."""
STEPS = 40
"""Fewest steps: a model that has learned nothing yet does as badly on all rows."""
NLL = "sft/nll"
PROMPTS = 32
"""Held-out prompts, where ``eval.max_samples`` does not say how many are asked."""


@diagnosis(*REWARDS, "group/reward_std", steps=STEPS, texts=LAST)
def wrong_labels(record: Record) -> Finding | None:
    """Return a hint where held-out prompts are paid more than training prompts, by more than sampling explains.

    A held-out reward is mostly of the most probable answers, a training reward of samples. The former may exceed the
    latter by the spread of the samples of a prompt; where a policy is sure of its answers, this is next to nothing.
    """
    if record.options.get("data.sampler", "none") != "none":
        return None
    means = record.values("reward/mean")
    size = width(means)
    now, within = record.last("reward/mean", size), record.last("group/reward_std", size)
    rewards = record.texts.rewards
    span = max(rewards) - min(rewards)
    prompts = record.number("eval.max_samples") or PROMPTS
    noise = (
        statistics.variance(means[-size:]) / size + record.last("reward/std", size) ** 2 / prompts
    )
    for name, series in record.evaluations("/reward"):
        values = _lately(series, record.series("reward/mean").steps[-size:][0])
        gap = min(values, default=now) - now
        unexplained = gap - WITHIN * within
        if len(values) < EVALUATIONS or unexplained <= max(LEAST * span, ERRORS * noise**0.5):
            continue
        return Finding(
            sentence=f"held-out prompts ({name}) are paid {min(values):.3g} or more, training prompts {now:.3g}, and "
            f"samples of one prompt differ by {within:.2g} only: the policy is sure of answers that training does not "
            "pay. Labels of training rows are wrong in part, or these are harder than held-out ones",
            evidence={
                f"least of {len(values)} {name}": min(values),
                "reward/mean at last": now,
                "group/reward_std at last": within,
                "standard error": noise**0.5,
                "held-out prompts": prompts,
            },
            change=("data.train", "reward.use"),
            step=record.series("reward/mean").steps[-1],
            is_sure=False,
        )
    return None


def _lately(series: Series, since: int) -> list[float]:
    """Return the evaluations since a step, the last ``EVALUATIONS`` at least: those of the steps that they are compared
    with, for a model that learns is better at each."""
    pairs = series.points()
    late = [value for step, value in pairs if step >= since]
    return late if len(late) >= EVALUATIONS else [value for _, value in pairs[-EVALUATIONS:]]


@diagnosis("|".join((NLL, *ACCURACIES)), steps=STEPS)
def wrong_rows(record: Record) -> Finding | None:
    """Return a hint where training rows are learned worse than held-out ones: their loss is higher, or their accuracy
    lower. It is that of each batch before that is learned from, so that rows which come again are better, not worse.
    """
    if record.number("train.neftune_alpha") or record.number("actor.lora.dropout"):
        return None  # noise in updates alone: training rows are worse for that
    for name in (NLL, *ACCURACIES):
        values = record.values(name)[-2 * LAST :]
        if not values:
            continue
        now = statistics.fmean(values)
        error = statistics.stdev(values) / len(values) ** 0.5
        for held, series in record.evaluations("/nll" if name == NLL else "/accuracy"):
            last = _lately(series, record.series(name).steps[-2 * LAST :][0])
            if len(last) < EVALUATIONS:
                continue
            worst = max(last) if name == NLL else min(last)
            behind = now - worst if name == NLL else worst - now
            least = (WORSE - 1.0) * worst if name == NLL else LEAST
            if behind > max(least, ERRORS * error):
                return _behind(record, name, held, now, worst, error)
    return None


def _behind(
    record: Record, name: str, held: str, now: float, worst: float, error: float
) -> Finding:
    return Finding(
        sentence=f"training rows are learned worse than held-out ones: {name} is {now:.3g}, and {held} is "
        f"{worst:.3g} at the worst of the last evaluations, though the model has seen the former. Labels "
        "of training rows are wrong in part, or these are harder than held-out ones",
        evidence={
            f"{name} of the last {2 * LAST} steps": now,
            f"worst of the last {held}": worst,
            "standard error": error,
        },
        change=("data.train",),
        step=record.series(name).steps[-1],
        is_sure=False,
    )
