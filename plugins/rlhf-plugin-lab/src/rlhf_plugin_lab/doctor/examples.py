"""Diagnoses of runs that learn from examples: ``rlhf sft``, ``dpo``, ``rm``, ``prm`` and ``distill``."""

from __future__ import annotations

import statistics

from .diagnosis import Finding, diagnosis
from .record import LAST, Record, width

LOSSES = ("sft/nll", "loss/preference", "loss/ranking", "loss/steps", "distill/kl")
ACCURACIES = ("preference/accuracy", "ranking/accuracy", "steps/accuracy")
ROSE = 0.2
"""Rise of the loss from the first window to the last, as a share of the first."""
BURST = 2.0
"""Highest mean loss of five steps, as a multiple of the first step's, which is that of the weights before updates."""
NOT_BACK = 0.8
"""Share of the first step's loss below which a run has come back from a burst and learns."""
NOISE = 5.0
"""Rise in standard errors of the difference of two windows: batches differ, and a few rows are harder."""
CHANCE = 0.52
"""Accuracy over the last half of a run that is chance; over 50 batches of 16 pairs its standard error is 0.018."""
CHANCE_ERRORS, CHANCE_MOST = 2.0, 0.54
"""Standard errors above a half that are chance, too, up to this accuracy: of runs of 1300 pairs that nothing tells
apart, one in fourteen is above 0.52."""
CHANCE_STEPS = 100
WORSE = 0.2
"""Rise of the held-out loss above its lowest, as a share of it: a few percent are usual in the last epochs. With 0.1
and two evaluations, a noise of 4 % alone had 3 of 50 records blamed."""
EVALUATIONS = 3
"""Last evaluations that are all worse."""


@diagnosis("|".join(LOSSES), steps=3 * LAST)
def loss_rises(record: Record) -> Finding | None:
    """Return a finding where the training loss is well above that of the start, and beyond the noise of its batches, or
    has been far above the loss before the first update and is not back."""
    name = _of(record, LOSSES)
    values = record.values(name)
    size = width(values)
    before, now = record.first(name, size), record.last(name, size)
    apart = (statistics.variance(values[:size]) + statistics.variance(values[-size:])) / size
    if now - before >= max(ROSE * abs(before), NOISE * apart**0.5) and now > 0.0:
        return _risen(record, name, f"has risen from {before:.3g} to {now:.3g}", before, now)
    first, peak = (
        values[0],
        max(statistics.fmean(values[at : at + 5]) for at in range(len(values) - 4)),
    )
    if 0.0 < first <= min(peak / BURST, now / NOT_BACK):
        course = (
            f"was {first:.3g} before the first update, {peak:.3g} at its worst, and is {now:.3g}"
        )
        return _risen(record, name, course, first, now, peak)
    return None


def _risen(
    record: Record, name: str, course: str, before: float, now: float, peak: float | None = None
) -> Finding:
    worst = {} if peak is None else {f"{name} at its worst": peak}
    return Finding(
        sentence=f"the training loss ({name}) {course}: the learning rate is likely too high, or rows are in an order "
        "of rising difficulty",
        evidence={f"{name} at first": before, **worst, f"{name} at last": now},
        change=("actor.adam.lr", "critic.adam.lr", "actor.max_norm", "data.shuffle"),
        step=record.series(name).steps[-1],
    )


@diagnosis("|".join(ACCURACIES), steps=CHANCE_STEPS)
def at_chance(record: Record) -> Finding | None:
    """Return a finding where a model that compares answers is no better than chance on what it is trained on, or on
    rows that it sees for the first time and on held-out ones: those that come again may be known by heart."""
    name = _of(record, ACCURACIES)
    half = _half(record.values(name))
    if not _is_chance(half):
        return _at_chance_held_out(record, name)
    return _chance(record, name, statistics.fmean(half), {"steps": len(half)}, "on training rows")


def _at_chance_held_out(record: Record, name: str) -> Finding | None:
    epochs = dict(record.points("train/epoch"))
    unseen = _half([value for step, value in record.points(name) if epochs.get(step, 0.0) <= 1.0])
    if len(unseen) < CHANCE_STEPS // 2 or not _is_chance(unseen):
        return None
    for held, series in record.evaluations("/accuracy"):
        last = _half(series.finite())
        if len(last) >= EVALUATIONS and statistics.fmean(last) <= CHANCE:
            evidence = {f"{name} on unseen rows": statistics.fmean(unseen), "steps": len(unseen)}
            return _chance(record, held, statistics.fmean(last), evidence, "on held-out rows")
    return None


def _half(values: list[float]) -> list[float]:
    return values[len(values) // 2 :]


def _is_chance(values: list[float]) -> bool:
    """Return whether the mean accuracy is that of chance, or above it by no more than luck."""
    error = statistics.stdev(values) / len(values) ** 0.5
    most = min(CHANCE_MOST, 0.5 + CHANCE_ERRORS * error)
    return bool(statistics.fmean(values) <= max(CHANCE, most))


def _chance(
    record: Record, name: str, accuracy: float, evidence: dict[str, float], where: str
) -> Finding:
    return Finding(
        sentence=f"over the last half of the run the accuracy {where} ({name}) is {accuracy:.3g}, which is chance: the "
        "labels do not say which answer is better, the two are swapped in part, or the learning rate is far off",
        evidence={name: accuracy, **evidence},
        change=("data.train", "actor.adam.lr", "critic.adam.lr"),
        step=record.series(name).steps[-1],
    )


@diagnosis("|".join(LOSSES))
def overfits(record: Record) -> Finding | None:
    """Return a finding where the held-out loss has risen from its lowest while the training loss has fallen."""
    name = _of(record, LOSSES)
    train = record.series(name)
    for held, series in record.evaluations("/loss", "/nll"):
        pairs = [(value, step) for step, value in series.points()]
        if len(pairs) <= EVALUATIONS:
            continue
        lowest, at = min(pairs)
        now = min(value for value, _ in pairs[-EVALUATIONS:])
        then = [value for step, value in train.points() if step <= at]
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
                change=("train.epochs", "actor.adam.lr"),
                step=at,
            )
    return None


def _is_better(record: Record, held: str, at: int) -> bool:
    """Return whether the held-out accuracy has risen since: a loss rises, too, where right ones get surer."""
    accuracy = record.series(f"{held.rpartition('/')[0]}/accuracy")
    then = [value for step, value in accuracy.points() if step <= at]
    return bool(then) and accuracy.finite()[-1] >= then[-1]


def _of(record: Record, names: tuple[str, ...]) -> str:
    return next(name for name in names if record.values(name))
