"""Order of the samples of a group by their reward, against that by their advantage, where tokens were recorded."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..recorded.problems import Problems
from ..recorded.tokens import mean_advantages
from .text import Text

STEPS = 20
"""Most files of tokens that are read."""


@dataclass(slots=True)
class Orders:
    """Pairs of samples of one group with different rewards and advantages."""

    pairs: int = 0
    agreeing: int = 0
    """Pairs whose sample with the higher reward has the higher advantage, too."""
    groups: int = 0
    """Groups with such pairs."""
    step: int = 0
    """Last step with some."""


class Sample(NamedTuple):
    reward: float
    advantage: float


def read_orders(run: Path, texts: Sequence[Text], problems: Problems) -> Orders:
    """Return the orders of the recorded rollouts; none where the run recorded no tokens. A sample's advantage is the
    mean over the tokens that the policy wrote."""
    by_step: dict[int, dict[str, Text]] = defaultdict(dict)
    for text in texts:  # those of a short run are among the first and the last
        by_step[text.step][text.uid] = text
    orders = Orders()
    for step in sorted(by_step)[-STEPS:]:
        advantages = mean_advantages(run, step, problems)
        groups: dict[str, list[Sample]] = defaultdict(list)
        for uid in by_step[step].keys() & advantages.keys():
            text = by_step[step][uid]
            groups[text.group].append(Sample(text.reward, advantages[uid]))
        for samples in groups.values():
            _count(orders, step, samples)
    return orders


def _count(orders: Orders, step: int, samples: Sequence[Sample]) -> None:
    """Add the pairs of a group."""
    signs = [
        (a.reward - b.reward) * (a.advantage - b.advantage)
        for a, b in itertools.combinations(samples, 2)
    ]
    signs = [sign for sign in signs if sign]  # a tie has no order
    if signs:
        orders.pairs += len(signs)
        orders.agreeing += sum(sign > 0.0 for sign in signs)
        orders.groups += 1
        orders.step = step
