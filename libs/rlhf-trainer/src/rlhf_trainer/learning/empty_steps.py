"""Steps in a row without an update, because nothing was left to train on: half of the limit warns, the limit ends the
run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from rlhf_core.errors import EmptyStepsError

log = logging.getLogger(__name__)

DROPPED = "filter/dropped_groups/"
"""Prefix of the metrics that count dropped groups by reason."""


class EmptySteps:
    """Counts steps in a row without an update.

    Args:
        limit: ``train.max_empty_steps``, at least 1.
        before: the number up to the resume point.
    """

    def __init__(self, limit: int, before: int = 0) -> None:
        self._limit = limit
        self._reasons: Counter[str] = Counter()
        self.in_a_row = before

    def note(self, step: int, values: Mapping[str, float], *, updated: bool) -> None:
        """Take a step, and warn or end the run when there were too many without an update.

        Args:
            values: metrics of the step.

        Raises:
            EmptyStepsError: the number has reached the limit.
        """
        if updated:
            self.in_a_row = 0
            self._reasons.clear()
            return
        self.in_a_row += 1
        for name, count in values.items():
            if name.startswith(DROPPED):
                self._reasons[name.removeprefix(DROPPED)] += round(count)
        if self.in_a_row >= self._limit:
            raise EmptyStepsError(f"{self._text(step)} {_FIX}")
        if self.in_a_row == -(-self._limit // 2):
            log.warning(
                "%s The run ends after %d such steps (--train.max_empty_steps).",
                self._text(step),
                self._limit,
            )

    def _text(self, step: int) -> str:
        found = ", ".join(f"{reason}: {count}" for reason, count in self._reasons.most_common(5))
        groups = f"all groups were dropped ({found})" if found else "no group was left"
        steps = "step" if self.in_a_row == 1 else "steps in a row"
        return f"nothing was trained in {self.in_a_row} {steps}, up to step {step}: {groups}."


_FIX = (
    "Look at what drops them: the rewards (their on_error), and --rollout.filters with its options; draw more prompts "
    "a step with --rollout.max_refills, or wait longer with --train.max_empty_steps."
)
