"""The record of a run as diagnoses look at it: means over windows of steps, and texts of first and last steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ..recorded.fates import Fates, read_fates
from ..recorded.lines import lines_of, step_of
from ..recorded.metrics import Metrics, Series, read_metrics
from ..recorded.options import Options, read_options
from ..recorded.problems import Problems
from ..recorded.turns import POLICY, pieces_of
from .orders import Orders, read_orders
from .text import Text

LAST = 10
"""Steps at the end of a run that a sign must have lasted for."""
FEWEST = 20
"""Steps before most diagnoses look: fewer are within what luck does to a batch."""
WIDEST = 20
"""Largest number of steps over which the reward is averaged, at a run's start and at its end."""
RISEN = 0.1
"""Rise of the mean reward that counts as learning, in standard deviations of the samples' rewards. It is the number of
the warnings of a run that goes on."""
NEARLY = 0.05
"""Mean reward below the highest recorded one, as a share of the range of the recorded ones, at which a task is solved
whatever spread is left."""
UNSOLVED = 0.7
"""Spread of rewards, as a share of the largest of the run, from which on prompts are left that get less than others:
with rewards of 0 and 1 a batch of which 86 % are right is below."""
EVALUATIONS = 3
"""Last held-out evaluations of which the best one counts: one or two are often bad."""
_TEXT = 4000
"""Characters of an answer, or of a prompt's end, that are looked at."""


@dataclass(slots=True)
class Texts:
    """Rollouts of the first and of the last steps that recorded some."""

    first: list[Text] = field(default_factory=list)
    last: list[Text] = field(default_factory=list)
    steps: int = 0
    """Number of steps with rollouts, those between included."""

    @property
    def rewards(self) -> list[float]:
        """Rewards of all of them."""
        return [text.reward for text in (*self.first, *self.last)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything that a run recorded."""

    metrics: Metrics
    options: Mapping[str, str] = field(default_factory=dict)
    """Path of each option -> its value as text."""
    command: str = ""
    """Name of the command; empty: it is not known."""
    fates: Fates = field(default_factory=dict)
    texts: Texts = field(default_factory=Texts)
    orders: Orders = field(default_factory=Orders)

    def series(self, name: str) -> Series:
        """Return a metric's series; an empty one where the run has none of the name."""
        return self.metrics.series.get(name, Series())

    def values(self, name: str) -> list[float]:
        """Return the finite values of a metric, in order of steps."""
        return self.series(name).finite()

    def points(self, name: str) -> list[tuple[int, float]]:
        """Return steps and finite values of a metric."""
        return self.series(name).points()

    def last(self, name: str, count: int = LAST) -> float:
        """Return the mean of a metric's last values; NaN: there are none."""
        return mean(self.values(name)[-count:])

    def first(self, name: str, count: int = LAST) -> float:
        """Return the mean of a metric's first values; NaN: there are none."""
        return mean(self.values(name)[:count])

    def number(self, option: str) -> float | None:
        """Return an option that is a number; None: it is none, or not there."""
        try:
            return float(self.options.get(option, ""))
        except ValueError:
            return None

    @property
    def spread(self) -> float:
        """Largest mean standard deviation of the samples' rewards over a window, which is the unit of rises."""
        return max(windows(self.values("reward/std")), default=0.0)

    @property
    def rise(self) -> float:
        """Mean reward of the last window above that of the first one; NaN: the run has no rewards."""
        means = self.values("reward/mean")
        return self.last("reward/mean", width(means)) - self.first("reward/mean", width(means))

    @property
    def rises(self) -> bool:
        """Whether the mean reward is higher than at the start, by more than luck does."""
        return self.rise > RISEN * self.spread and self.rise > 0.0

    @property
    def is_unsolved(self) -> bool:
        """Whether some samples still get much less than others."""
        spreads = self.values("reward/std")
        return bool(spreads) and mean(spreads[-width(spreads) :]) >= UNSOLVED * self.spread > 0.0

    @property
    def is_solved(self) -> bool:
        """Whether rewards are nearly the highest recorded, here or in one of the last evaluations of each held-out
        set."""
        least = self.solved_from
        lately = [series.values[-EVALUATIONS:] for _, series in self.evaluations("/reward")]
        held_out = [
            max((v for v in values if v is not None), default=-math.inf) for values in lately
        ]
        return self.last("reward/mean") >= least or min(held_out, default=-math.inf) >= least

    @property
    def is_solved_held_out(self) -> bool:
        """Whether held-out rewards are nearly the highest recorded: where filters drop groups whose samples are alike,
        those that are left to train on always differ."""
        held_out = [series.values[-1] for _, series in self.evaluations("/reward") if series.values]
        least = self.solved_from
        return bool(held_out) and all(value is not None and value >= least for value in held_out)

    @property
    def solved_from(self) -> float:
        """Mean reward from which on a task is solved, whatever spread is left; infinity where no rewards differ, or
        the recorded ones do not and a batch has more.

        Of a task that was solved before the run a batch may have lower rewards than the rollouts that were recorded.
        """
        rewards, means = self.texts.rewards, self.values("reward/mean")
        if not rewards:
            return math.inf
        highest, lowest = max(rewards), min([*rewards, *means])
        is_top = min(rewards) < highest or max(means, default=highest) <= highest
        return highest - NEARLY * (highest - lowest) if is_top and lowest < highest else math.inf

    def evaluations(self, *ends: str) -> Iterator[tuple[str, Series]]:
        """Yield name and series of the evaluations whose names end so."""
        for name, series in self.metrics.series.items():
            if name.startswith("eval/") and name.endswith(ends):
                yield name, series


def read_record(run: Path, problems: Problems) -> Record:
    """Return the record of a run folder; what cannot be read is noted and left out."""
    options: Options = read_options(run / "config.toml", problems)
    samples = run / "samples.jsonl"
    texts = _texts(samples, problems) if samples.exists() else Texts()
    return Record(
        metrics=read_metrics(run / "metrics.jsonl", problems),
        options=options.values,
        command=options.command,
        fates=read_fates(run / "ledger.jsonl", problems),
        texts=texts,
        orders=read_orders(run, [*texts.first, *texts.last], problems),
    )


def _texts(path: Path, problems: Problems) -> Texts:
    texts, recent = Texts(), deque[list[Text]](maxlen=LAST)
    step = None
    for line in lines_of(path, problems):
        if "example" in line.value:  # a row to learn of, which nobody sampled
            continue
        found = _text(line.value)
        if found is None:
            problems.note(f"lines of {path.name} without step, text and reward are left out")
            continue
        if found.step != step:
            step = found.step
            texts.steps += 1
            recent.append([])
        recent[-1].append(found)
        if texts.steps <= LAST:
            texts.first.append(found)
    texts.last = [text for texts_of_step in recent for text in texts_of_step]
    return texts


def _text(sample: Mapping[str, Any]) -> Text | None:
    step, uid = step_of(dict(sample)), sample.get("uid")
    answer, reward = sample.get("response"), sample.get("reward")
    if step is None or not isinstance(uid, str) or not isinstance(answer, str):
        return None
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return None
    # A piece may have no text: a mark that ends a turn is one token, which is not shown.
    pieces = pieces_of(sample)
    writers = [writer for writer, _ in pieces]
    if pieces:  # what an environment says depends on the prompt, whatever the policy does
        said = [text for writer, text in pieces if writer == POLICY]
        answer = "\n".join(text for text, _ in groupby(said))
    return Text(
        step=step,
        group=".".join(uid.split(".")[:2]),
        answer=answer[:_TEXT],
        reward=float(reward),
        uid=uid,
        prompt=prompt[-_TEXT:] if isinstance(prompt := sample.get("prompt"), str) else "",
        images=_images(sample),
        truncated=sample.get("truncated") is True,
        turns=writers.count(POLICY) if writers else 1,
        policy_ends=not writers or writers[-1] == POLICY,
    )


def _images(sample: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of a sample's images, whose names are digests of what is seen."""
    images = sample.get("images")
    found = images if isinstance(images, list) else []
    return tuple(str(each["file"]) for each in found if isinstance(each, dict) and "file" in each)


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN for no values."""
    return sum(values) / len(values) if values else math.nan


def width(values: Sequence[float]) -> int:
    """Return the number of steps of a window: a fifth of a run, from 5 to ``WIDEST``."""
    return min(max(len(values) // 5, 5), WIDEST)


def windows(values: Sequence[float]) -> list[float]:
    """Return the means of windows side by side, from the first value on; a last one that is not full is left out."""
    size = width(values)
    starts = range(0, len(values) - size + 1, size)
    return [mean(values[start : start + size]) for start in starts]
