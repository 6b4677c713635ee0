"""Checks of environments (``contracts.Environment``). No model plays: right answers come from the environment itself or
from its rows, and other answers from here."""

from __future__ import annotations

from ..environments import (
    answers,
    hacks,
    leaks,
    lifetime,
    repeating,
    results,
    rows,
    running,
    scoring,
)
from ..subject import checks_in

_PARTS = (rows, results, answers, lifetime, running, repeating, scoring, hacks, leaks)
# First: where a step blocks, every other check that plays would wait for it again and again.
CHECKS = tuple(
    dict.fromkeys((lifetime.check_steps_do_not_block, *checks_in(*(p.__name__ for p in _PARTS))))
)
