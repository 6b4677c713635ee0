"""Every estimator, policy loss and IS correction of this repository with every rollout executor, end to end."""

import math

import pytest

from rlhf_testing.conformance import has_required_options

from .first_party import installed

pytestmark = pytest.mark.slow

FLAGS_FOR_NEED = {
    "environment": ["--env", "echo_after_hint", "--rollout.max_length", "32"],
    "teacher_logprobs": ["--algo.teacher.path", "{teacher}"],
}
"""What a run with a component of some need is given."""


def names(hook: str) -> list[str]:
    return [entry.name for entry in installed(hook)]


def needs_of_defaults(entry) -> list[str]:
    component = entry.component
    return sorted(component.needs | component.config().needed_by_options())


EXECUTORS = {
    entry.name: [flag for need in entry.component.needs for flag in FLAGS_FOR_NEED[need]]
    for entry in installed("rlhf_rollout_executors")
    if not has_required_options(entry)
}
"""Executors that a run needs only to name; one with required options has its own tests of runs."""
LOSSES = {
    entry.name: [flag for need in needs_of_defaults(entry) for flag in FLAGS_FOR_NEED.get(need, ())]
    for entry in installed("rlhf_policy_losses")
    if "supervised_data" not in entry.component.needs
}
DEFAULTS = ("reinforce_baseline", "ppo", None)
CHOICES = [
    *((estimator, *DEFAULTS[1:]) for estimator in names("rlhf_advantage_estimators")),
    *((DEFAULTS[0], loss, None) for loss in LOSSES),
    *((*DEFAULTS[:2], correction) for correction in names("rlhf_is_corrections")),
]
"""Each component once with the usual others; test_product.py combines all with all."""
COMBINATIONS = [(*choice, executor) for choice in CHOICES for executor in EXECUTORS]
SAMPLED = [
    # Each component with one executor, each executor with its share of the components; the rest by make test-all.
    pytest.param(
        *choice, executor, marks=[] if (row + column) % len(EXECUTORS) == 0 else pytest.mark.matrix
    )
    for row, choice in enumerate(CHOICES)
    for column, executor in enumerate(EXECUTORS)
]


def test_there_is_something_to_combine():
    assert len({estimator for estimator, *_ in COMBINATIONS}) >= 6
    assert len(EXECUTORS) >= 2


@pytest.mark.parametrize(("estimator", "loss", "correction", "executor"), SAMPLED)
def test_a_component_takes_a_step_with_finite_numbers(
    train, teacher, estimator, loss, correction, executor
):
    flags = ["--loss", loss, "--executor", executor, "--steps", "1"]
    if estimator != DEFAULTS[0]:
        flags += ["--estimator", estimator]
    flags += ["--reward", "vary.py:vary", "--reward.vary.isolate", "false"]
    if correction is not None:
        flags += ["--algo.correction.kind", correction]

    more = [flag.format(teacher=teacher) for flag in (*EXECUTORS[executor], *LOSSES[loss])]

    (line,) = train("run", *flags, *more)

    unusual = {name: x for name, x in line["metrics"].items() if not math.isfinite(x)}
    assert unusual == {}
    assert line["metrics"]["policy/grad_norm"] > 0
