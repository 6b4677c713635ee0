"""The watch on a run's metrics for signs that it learns nothing: each is said once, in one line of the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .symptoms import Symptoms, symptoms_of

if TYPE_CHECKING:
    from rlhf_core.contracts import RunInfo

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


CAUSES = {
    "policy": ZeroGradientCauses(
        error="advantage/abs_mean",
        right="Every advantage of these steps was 0, which is then the cause: no prompt had samples of different "
        "rewards. The reward is constant, or the prompts are too easy or too hard; look at reward/std and "
        "group/no_signal",
        wrong="Its advantages were not 0, so the gradient is lost on its way: the policy loss masks or clips every "
        "token (look at loss/policy and clip/...), an adapter trains what the loss does not depend on, or the backend "
        "drops it",
    ),
    "critic": ZeroGradientCauses(
        error="critic/abs_error",
        right="Its values were equal to the returns, which is then the cause; look at reward/std and "
        "critic/return_mean",
        wrong="Its values were not equal to the returns (critic/abs_error), so the gradient is lost on its way: "
        "critic.value_clip leaves no value free to move, or the backend drops it",
    ),
}
"""Causes in runs with rollouts, by role."""
OF_EXAMPLES = ZeroGradientCauses(
    wrong="An adapter trains what the loss does not depend on, or the backend drops the gradient"
)
"""Causes in a run that learns from examples, in any role."""
GRADIENT = "/grad_norm"
"""End of the name of the metric that has the norm of a role's gradient; the role is its beginning."""


class ZeroGradients:
    """Counts, for each role, the steps in a row whose updates all had a gradient of norm 0.

    Args:
        roles: causes for each role that is watched.
        backend: name of the training backend, for the message.
        output: the run folder, for the message; None: the run has no rollouts to look at.
        others: causes for every role that ``roles`` does not name; None: other roles are not watched.
    """

    def __init__(
        self,
        roles: Mapping[str, ZeroGradientCauses],
        backend: str,
        output: str | None = None,
        *,
        others: ZeroGradientCauses | None = None,
    ) -> None:
        self._roles, self._backend, self._output = dict(roles), backend, output
        self._others = others
        self._in_a_row: Counter[str] = Counter()
        self._errors: dict[str, float] = {}
        self._said: set[str] = set()

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step. A role that it did not update, or whose updates it skipped, keeps its count."""
        if self._others is not None:
            found = [name.removesuffix(GRADIENT) for name in values if name.endswith(GRADIENT)]
            self._roles = dict.fromkeys(found, self._others) | self._roles
        for role, causes in self._roles.items():
            norm = values.get(role + GRADIENT)
            if norm is None:
                continue
            if norm != 0.0:
                self._in_a_row[role], self._errors[role] = 0, 0.0
                continue
            self._in_a_row[role] += 1
            error = 1.0 if causes.error is None else values.get(causes.error, 0.0)
            self._errors[role] = max(self._errors.get(role, 0.0), error)
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


class LearningWatch:
    """Hears each step of a run. Symptoms are those of rollouts; gradients of 0 are watched in every run."""

    def __init__(self, run: RunInfo) -> None:
        backend, rollout = run.config["backend"]["name"], run.config.get("rollout")
        self._symptoms: Symptoms | None = None
        if rollout is None:
            self._gradients = ZeroGradients({}, backend, others=OF_EXAMPLES)
            return
        folder = str(run.config["output"])
        self._gradients = ZeroGradients(CAUSES, backend, folder)
        self._symptoms = Symptoms(folder, symptoms_of(rollout["max_new_tokens"]))

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, and warn of the signs that have lasted long enough."""
        self._gradients.note(step, metrics)
        if self._symptoms is not None:
            self._symptoms.note(step, metrics)
