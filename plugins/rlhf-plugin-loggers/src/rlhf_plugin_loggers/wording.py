"""Numbers and durations in a form for people, and the metrics of a progress line, the most important first."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

NOTE_CHARACTERS = 160
"""Longest note that the start of a run shows: names of all parameters would fill the screen."""


def number(value: float) -> str:
    """Return about four digits in similar width: ``0.0031``, ``0.512``, ``1.250``, ``12.35``, ``1234``, ``1.2e-05``."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if value and not 1e-3 <= size < 1e5:
        return f"{value:.2g}"
    decimals = next((n for n, limit in ((4, 0.1), (3, 10), (2, 100), (1, 1000)) if size < limit), 0)
    return f"{value:.{decimals if value else 3}f}"


def rate(value: float) -> str:
    """Return tokens per second as text: ``950 tok/s``, ``8.1k tok/s``, ``34k tok/s``, ``1.2M tok/s``."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            size = value / limit
            return f"{size:.{1 if size < 10 else 0}f}{unit} tok/s"
    return f"{value:.0f} tok/s"


def seconds(value: float) -> str:
    """Return seconds of a part of a step as text: ``4.9 s``."""
    return f"{value:.1f} s"


def duration(seconds: float) -> str:
    """Return seconds as text: ``8 s``, ``1:02 min``, ``1:02:03 h``, ``2 d 03:04 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left:02}:{minutes_left:02} h"
    if hours:
        return f"{hours}:{minutes_left:02}:{seconds_left:02} h"
    return f"{minutes}:{seconds_left:02} min"


def note_line(note: str) -> str:
    """Return a note of a run's start as one line of ``NOTE_CHARACTERS`` at most; ``run.log`` has the whole note."""
    return textwrap.shorten(note, NOTE_CHARACTERS, placeholder=" ... (full text in run.log)")


@dataclass(frozen=True, slots=True)
class Field:
    """One number of the progress line."""

    label: str
    metric: str
    """Name of the metric."""
    text: Callable[[float], str] = number
    """Function that returns the number as text."""


FIELDS = (
    Field("reward", "reward/mean"),
    Field("unshaped", "rollout/unshaped_reward"),
    Field("loss", "sft/nll"),
    Field("loss", "loss/preference"),
    Field("loss", "loss/ranking"),
    Field("loss", "loss/steps"),
    Field("KL(teacher)", "distill/kl"),
    Field("accuracy", "preference/accuracy"),
    Field("accuracy", "ranking/accuracy"),
    Field("accuracy", "steps/accuracy"),
    Field("KL(ref)", "kl/ref"),
    Field("KL(old)", "policy/approx_kl"),
    Field("entropy", "policy/entropy"),
    Field("length", "response/length_mean"),
    Field("generate", "timing/generate_tokens_per_s", rate),
    Field("train", "timing/train_tokens_per_s", rate),
    Field("sleep and wake", "timing/moves_s", seconds),
)

LEARNED = ("loss", "KL(teacher)", "accuracy")
"""Labels of the fields that say how well a step's rows are learned."""

HELD_OUT = ("eval/accuracy", "eval/nll", "eval/loss")
"""Metrics of the held-out rows of runs without rollouts; the first that exists is their headline."""


def step_words(metrics: Mapping[str, float]) -> list[str]:
    """Return ``label value`` for each field whose metric exists. KL(old) is shown only without KL(ref)."""
    hidden = {"policy/approx_kl"} if "kl/ref" in metrics else set()
    return [
        f"{field.label} {field.text(metrics[field.metric])}"
        for field in FIELDS
        if field.metric in metrics and field.metric not in hidden
    ]


def learned_fields(metrics: Iterable[str]) -> list[Field]:
    """Return the fields of ``LEARNED`` whose metric is among these names."""
    known = set(metrics)
    return [field for field in FIELDS if field.label in LEARNED and field.metric in known]


def headlines(names: Iterable[str]) -> list[str]:
    """Return the name of one metric for each evaluation set and temperature: ``pass@1`` if it exists, else ``reward``;
    and of one of held-out rows without rollouts.

    Args:
        names: names of metrics. Names other than ``eval/<set>/T<temperature>/<metric>`` and ``HELD_OUT`` are ignored.
    """
    names = list(names)
    by_prefix: dict[str, set[str]] = {}
    for name in names:
        prefix, _, metric = name.rpartition("/")
        if prefix.startswith("eval/"):
            by_prefix.setdefault(prefix, set()).add(metric)
    chosen = [name for name in HELD_OUT if name in names][:1]
    for prefix, metrics in sorted(by_prefix.items()):
        chosen += [f"{prefix}/{m}" for m in ("pass@1", "reward") if m in metrics][:1]
    return chosen


def eval_label(name: str) -> str:
    """Return the name of an evaluation metric in words, such as ``test T0 pass@1`` for ``eval/test/T0/pass@1``, and
    ``held-out nll`` for ``eval/nll``."""
    if name in HELD_OUT:
        return f"held-out {name.removeprefix('eval/')}"
    return " ".join(name.removeprefix("eval/").rsplit("/", 2))


def eval_words(metrics: Mapping[str, float]) -> list[str]:
    """Return the headline metric of each set and temperature in words, such as ``test T0 pass@1 0.953``."""
    return [f"{eval_label(name)} {number(metrics[name])}" for name in headlines(metrics)]
