"""Order of the samples of a group by their reward, against that by their advantage, where tokens were recorded."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def read_orders(run: Path, texts: Sequence[Text], problems: Problems) -> Orders:
    """Return the orders of the recorded rollouts; none where the run recorded no tokens. A sample's advantage is the
    mean over the tokens that the policy wrote."""
    by_step: dict[int, dict[str, list[Text]]] = defaultdict(lambda: defaultdict(list))
    for text in texts:
        by_step[text.step][text.group].append(text)
    orders = Orders()
    for step in sorted(by_step)[-STEPS:]:
        advantages = mean_advantages(run, step, problems)
        for samples in by_step[step].values():
            _count(
                orders,
                step,
                [(each.reward, advantages.get(each.uid, math.nan)) for each in samples],
            )
    return orders


def _count(orders: Orders, step: int, samples: Sequence[tuple[float, float]]) -> None:
    """Add the pairs of a group, whose samples are reward and advantage."""
    signs = [
        (a[0] - b[0]) * (a[1] - b[1])
        for a, b in itertools.combinations(samples, 2)
        if a[0] != b[0] and a[1] != b[1] and not math.isnan(a[1] - b[1])
    ]
    if signs:
        orders.pairs += len(signs)
        orders.agreeing += sum(sign > 0.0 for sign in signs)
        orders.groups += 1
        orders.step = step
