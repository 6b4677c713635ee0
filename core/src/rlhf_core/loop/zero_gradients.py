"""Warning about a role that learns nothing, because its gradient is exactly 0 step after step; once for each role."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..learning.roles import CRITIC, POLICY

log = logging.getLogger(__name__)

PATIENCE = 10
"""Steps in a row whose updates all had a gradient of norm 0, before the warning. A gradient that is merely small does
not count: float32 rounding alone keeps its norm above 0."""
NO_ERROR = {POLICY: "advantage/abs_mean", CRITIC: "critic/abs_error"}
"""Role -> metric that is 0 exactly where a gradient of 0 is right."""
RIGHT = {
    POLICY: "Every advantage of these steps was 0, which is then the cause: no prompt had samples of different "
    "rewards. The reward is constant, or the prompts are too easy or too hard; look at reward/std and group/no_signal",
    CRITIC: "Its values were equal to the returns, which is then the cause; look at reward/std and "
    "critic/return_mean",
}
WRONG = {
    POLICY: "Its advantages were not 0, so the gradient is lost on its way: the policy loss masks or clips every token "
    "(look at loss/policy and clip/...), an adapter trains what the loss does not depend on, or the backend drops it",
    CRITIC: "Its values were not equal to the returns (critic/abs_error), so the gradient is lost on its way: "
    "critic.value_clip leaves no value free to move, or the backend drops it",
}


class ZeroGradients:
    """Counts, for each role, the steps in a row whose updates all had a gradient of norm 0.

    Args:
        backend: name of the training backend, for the message.
        output: the run folder, for the message.
    """

    def __init__(self, backend: str, output: str) -> None:
        self._backend, self._output = backend, output
        self._in_a_row = dict.fromkeys(NO_ERROR, 0)
        self._errors = dict.fromkeys(NO_ERROR, 0.0)
        self._said: set[str] = set()

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step. A role that it did not update, or whose updates it skipped, keeps its count."""
        for role, error in NO_ERROR.items():
            norm = values.get(f"{role}/grad_norm")
            if norm is None:
                continue
            if norm != 0.0:
                self._in_a_row[role], self._errors[role] = 0, 0.0
                continue
            self._in_a_row[role] += 1
            self._errors[role] = max(self._errors[role], values.get(error, 0.0))
            if self._in_a_row[role] >= PATIENCE and role not in self._said:
                self._said.add(role)
                log.warning("%s", self._message(role, step))

    def _message(self, role: str, step: int) -> str:
        causes = WRONG if self._errors[role] else RIGHT
        return (
            f"the {role} learns nothing: each of its last {self._in_a_row[role]} steps, up to step {step}, had a "
            f"gradient of norm 0. {causes[role]}. See the samples with: rlhf show {self._output} --step {step}; and "
            f"ask the backend whether it trains every parameter with: rlhf check {self._backend}"
        )
