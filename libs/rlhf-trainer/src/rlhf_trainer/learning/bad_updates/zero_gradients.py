"""Warning about a role that learns nothing, because its gradient is exactly 0 step after step; once for each role."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)

PATIENCE = 10
"""Steps in a row whose updates all had a gradient of norm 0, before the warning. A gradient that is merely small does
not count: float32 rounding alone keeps its norm above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroGradientCauses:
    """Causes of a gradient of 0 in one role, in sentences without the last period."""

    wrong: str
    """The cause where the gradient should not be 0."""
    error: str | None = None
    """Metric that is 0 exactly where a gradient of 0 is right; None: it never is."""
    right: str = ""
    """The cause where ``error`` was 0 in all of the steps."""


class ZeroGradients:
    """Counts, for each role, the steps in a row whose updates all had a gradient of norm 0.

    Args:
        roles: causes for each role that is watched.
        backend: name of the training backend, for the message.
        output: the run folder, for the message; None: the run has no rollouts to look at.
    """

    def __init__(
        self, roles: Mapping[str, ZeroGradientCauses], backend: str, output: str | None = None
    ) -> None:
        self._roles, self._backend, self._output = roles, backend, output
        self._in_a_row = dict.fromkeys(roles, 0)
        self._errors = dict.fromkeys(roles, 0.0)
        self._said: set[str] = set()

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step. A role that it did not update, or whose updates it skipped, keeps its count."""
        for role, causes in self._roles.items():
            norm = values.get(f"{role}/grad_norm")
            if norm is None:
                continue
            if norm != 0.0:
                self._in_a_row[role], self._errors[role] = 0, 0.0
                continue
            self._in_a_row[role] += 1
            error = 1.0 if causes.error is None else values.get(causes.error, 0.0)
            self._errors[role] = max(self._errors[role], error)
            if self._in_a_row[role] >= PATIENCE and role not in self._said:
                self._said.add(role)
                log.warning("%s", self._message(role, step))

    def _message(self, role: str, step: int) -> str:
        causes = self._roles[role]
        samples = ""
        if self._output is not None:
            samples = f" See the samples with: rlhf show {self._output} --step {step}."
        return (
            f"the {role} learns nothing: each of its last {self._in_a_row[role]} steps, up to step {step}, had a "
            f"gradient of norm 0. {causes.wrong if self._errors[role] else causes.right}.{samples} Ask the backend "
            f"whether it trains every parameter with: rlhf check {self._backend}"
        )
