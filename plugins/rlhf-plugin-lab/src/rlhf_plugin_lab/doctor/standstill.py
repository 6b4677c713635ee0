"""Evidence that a run cannot leave its state, beside one that stands still for a while.

One answer to all prompts, samples that are all alike and groups without signal are seen in runs that have only begun,
and that learn later. A policy leaves such a state by what it tries and by rewards that differ. Where it still tries, or
still has something to compare, the state is a hint; without both it is a finding.
"""

from __future__ import annotations

import math

from .record import FEWEST, Record

CERTAIN = 0.05
"""Entropy in nats per token up to which hardly anything else is tried: of two tokens the likelier one has 0.991. Three
runs that stood still and learned later had 0.07 and more meanwhile."""
COMPARED = 0.02
"""Share of the groups whose samples differ in their reward, up to which there is nothing to learn from: of 50 groups
one. A batch of 16 then has one in three steps, which says nothing about the other prompts. Those three runs had 7 % and
more."""
YOUNG = 40
"""Steps up to which a run that stands still may only be slow to begin."""


def compared(record: Record) -> float:
    """Return the share of the last steps' groups whose samples differ in their reward; NaN: not recorded."""
    return 1.0 - record.last("group/no_signal", FEWEST)


def is_stuck(record: Record) -> bool:
    """Return whether the policy is certain of its answers, and hardly a group of the last steps had rewards to compare.

    Where one of the two is not recorded it is not known, and so not said.
    """
    return record.last("policy/entropy") <= CERTAIN and compared(record) <= COMPARED


def evidence(record: Record) -> dict[str, float]:
    """Return the numbers that decide, by what they are; those that are recorded."""
    numbers = {
        "policy/entropy at last": record.last("policy/entropy"),
        f"groups with different rewards in {FEWEST} steps": compared(record),
    }
    return {what: number for what, number in numbers.items() if not math.isnan(number)}


def outlook(record: Record) -> str:
    """Return what is to be expected of the state, as the end of a sentence."""
    if is_stuck(record):
        return ". It is certain of it, and hardly a group has rewards that differ: nothing moves it from there"
    if record.last("policy/entropy") > CERTAIN:
        return ". It still tries others, so it may move on"
    if compared(record) > COMPARED:
        return ". Some groups still have rewards that differ, so it may move on"
    return ". Whether it can move on is not recorded"
