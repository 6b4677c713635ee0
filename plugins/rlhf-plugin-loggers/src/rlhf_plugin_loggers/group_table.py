"""Samples of the same prompt as one line of a table: how their rewards are spread, and the best beside the worst."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .sample_table import Cell

if TYPE_CHECKING:
    from rlhf_core.contracts import RolloutSample

GROUP_COLUMNS = (
    "step",
    "group",
    "samples",
    "reward_mean",
    "reward_std",
    "reward_min",
    "reward_max",
    "truncated",
    "prompt",
    "best",
    "worst",
)


def group_rows(step: int, samples: Sequence[RolloutSample]) -> list[list[Cell]]:
    """Return one row for each prompt of which at least two samples are here, with the cells of ``GROUP_COLUMNS``.

    ``group`` is ``epoch.prompt``; ``reward_std`` divides by n - 1; ``truncated`` is a share; ``best`` and ``worst`` are
    the responses of highest and lowest reward, the first of equals. An episode of several segments counts once, by its
    first one.
    """
    return [_row(step, name, own) for name, own in _groups(samples) if len(own) > 1]


def _groups(samples: Sequence[RolloutSample]) -> Iterable[tuple[str, list[RolloutSample]]]:
    groups: dict[str, dict[str, RolloutSample]] = {}
    for sample in samples:
        epoch, prompt, number, _ = sample.uid.split(".")
        groups.setdefault(f"{epoch}.{prompt}", {}).setdefault(number, sample)
    return ((name, list(own.values())) for name, own in groups.items())


def _row(step: int, name: str, samples: Sequence[RolloutSample]) -> list[Cell]:
    rewards = [sample.reward for sample in samples]
    best = max(samples, key=lambda sample: sample.reward)
    worst = min(samples, key=lambda sample: sample.reward)
    return [
        step,
        name,
        len(samples),
        statistics.fmean(rewards),
        statistics.stdev(rewards),
        min(rewards),
        max(rewards),
        statistics.fmean(sample.truncated for sample in samples),
        samples[0].prompt,
        best.response,
        worst.response,
    ]
