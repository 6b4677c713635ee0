"""Diagnoses of runs that learn from examples: ``rlhf sft``, ``dpo``, ``rm``, ``prm`` and ``distill``."""

from __future__ import annotations

import statistics

from .diagnosis import Diagnosis, Finding
from .record import LAST, Record, width

LOSSES = ("sft/nll", "loss/preference", "loss/ranking", "loss/steps", "distill/kl")
ACCURACIES = ("preference/accuracy", "ranking/accuracy", "steps/accuracy")
ROSE = 0.2
"""Rise of the loss from the first window to the last, as a share of the first."""
NOISE = 5.0
"""Rise in standard errors of the difference of two windows: batches differ, and a few rows are harder."""
CHANCE = 0.52
"""Accuracy over the last half of a run that is chance; over 50 batches of 16 pairs its standard error is 0.018."""
CHANCE_STEPS = 100
WORSE = 0.2
"""Rise of the held-out loss above its lowest, as a share of it: a few percent are usual in the last epochs. With 0.1
and two evaluations, a noise of 4 % alone had 3 of 50 records blamed."""
EVALUATIONS = 3
"""Last evaluations that are all worse."""


def loss_rises(record: Record) -> Finding | None:
    """Return a finding where the training loss is well above that of the start, and beyond the noise of its batches."""
    name = _of(record, LOSSES)
    values = record.values(name)
    size = width(values)
    before, now = record.first(name, size), record.last(name, size)
    apart = (statistics.variance(values[:size]) + statistics.variance(values[-size:])) / size
    if now - before < max(ROSE * abs(before), NOISE * apart**0.5) or now <= 0.0:
        return None
    return Finding(
        sentence=f"the training loss ({name}) has risen from {before:.3g} to {now:.3g}: the learning rate is "
        f"likely too high, "
        "or rows are in an order of rising difficulty",
        evidence={f"{name} at first": before, f"{name} at last": now},
        change=("actor.adam.lr", "critic.adam.lr", "actor.max_norm", "data.shuffle"),
        step=record.series(name).steps[-1],
    )


def at_chance(record: Record) -> Finding | None:
    """Return a finding where a model that compares answers is no better than chance on what it is trained on."""
    name = _of(record, ACCURACIES)
    values = record.values(name)
    half = values[len(values) // 2 :]
    accuracy = statistics.fmean(half)
    if accuracy > CHANCE:
        return None
    return Finding(
        sentence=f"over the last {len(half)} steps the accuracy on training rows ({name}) is {accuracy:.3g}, "
        f"which is chance: "
        "the labels do not say which answer is better, the two are swapped in part, or the learning rate is far off",
        evidence={name: accuracy, "steps": len(half)},
        change=("data.train", "actor.adam.lr", "critic.adam.lr"),
        step=record.series(name).steps[-1],
    )


def overfits(record: Record) -> Finding | None:
    """Return a finding where the held-out loss has risen from its lowest while the training loss has fallen."""
    name = _of(record, LOSSES)
    train = record.series(name)
    for held, series in record.evaluations("/loss", "/nll"):
        pairs = [
            (value, step)
            for value, step in zip(series.values, series.steps, strict=True)
            if value is not None
        ]
        if len(pairs) <= EVALUATIONS:
            continue
        lowest, at = min(pairs)
        now = min(value for value, _ in pairs[-EVALUATIONS:])
        then = [
            v for v, s in zip(train.values, train.steps, strict=True) if v is not None and s <= at
        ]
        falls = bool(then) and record.last(name) < statistics.fmean(then[-LAST:])
        if (
            lowest > 0.0
            and now >= (1.0 + WORSE) * lowest
            and falls
            and not _is_better(record, held, at)
        ):
            return Finding(
                sentence=f"the held-out loss ({held}) was {lowest:.3g} at step {at} and is {now:.3g}, while "
                "the training loss falls: the model learns its rows by heart",
                evidence={
                    f"lowest {held}": lowest,
                    "step of the lowest": at,
                    f"{held} at last": now,
                },
                change=("train.epochs", "checkpoint.best_metric", "actor.adam.lr"),
                step=at,
            )
    return None


def _is_better(record: Record, held: str, at: int) -> bool:
    """Return whether the held-out accuracy has risen since: a loss rises, too, where right ones get surer."""
    accuracy = record.series(f"{held.rpartition('/')[0]}/accuracy")
    then = [
        v for v, s in zip(accuracy.values, accuracy.steps, strict=True) if v is not None and s <= at
    ]
    now = [value for value in accuracy.values if value is not None]
    return bool(then) and now[-1] >= then[-1]


def _of(record: Record, names: tuple[str, ...]) -> str:
    return next(name for name in names if record.values(name))


DIAGNOSES = (
    Diagnosis(name="loss_rises", needs=("|".join(LOSSES),), find=loss_rises, steps=3 * LAST),
    Diagnosis(name="at_chance", needs=("|".join(ACCURACIES),), find=at_chance, steps=CHANCE_STEPS),
    Diagnosis(name="overfits", needs=("|".join(LOSSES),), find=overfits),
)
