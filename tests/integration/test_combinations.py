"""Every estimator with every policy loss, IS correction and rollout executor of this repository, end to end."""

import itertools
import math
from pathlib import Path

import pytest

from rlhf_core import plugins as plugin_loader

PLUGINS = Path(__file__).parents[2] / "plugins"
FLAGS_FOR_NEED = {"environment": ["--env", "echo_after_hint", "--rollout.max_length", "32"]}
"""What a run with an executor of some need is given."""


def installed(hook: str) -> list:
    """The first-party components of a kind; what else is installed here is not our promise."""
    return [
        entry
        for entry in plugin_loader.load("").registries[hook]
        if entry.distribution is not None
        and (PLUGINS / entry.distribution.metadata["Name"]).is_dir()
    ]


def names(hook: str) -> list[str]:
    return [entry.name for entry in installed(hook)]


EXECUTORS = {
    entry.name: [flag for need in entry.component.needs for flag in FLAGS_FOR_NEED[need]]
    for entry in installed("rlhf_rollout_executors")
}
CORRECTIONS = [None, *names("rlhf_is_corrections")]
COMBINATIONS = list(
    itertools.product(
        names("rlhf_advantage_estimators"), names("rlhf_policy_losses"), CORRECTIONS, EXECUTORS
    )
)


def test_there_is_something_to_combine():
    assert len({estimator for estimator, *_ in COMBINATIONS}) >= 6
    assert len(EXECUTORS) >= 2


@pytest.mark.parametrize(("estimator", "loss", "correction", "executor"), COMBINATIONS)
def test_a_combination_takes_a_step_with_finite_numbers(
    train, workspace, estimator, loss, correction, executor
):
    # Differs between samples from the first step on, unlike an answer that has to be right.
    (workspace / "vary.py").write_text(
        "def vary(response):\n    return sum(map(ord, response)) % 7\n"
    )
    flags = ["--estimator", estimator, "--loss", loss, "--executor", executor, "--steps", "1"]
    flags += ["--reward", "vary.py:vary", "--reward.vary.isolate", "false"]
    if correction is not None:
        flags += ["--algo.correction.kind", correction]

    (line,) = train("run", *flags, *EXECUTORS[executor])

    unusual = {name: x for name, x in line["metrics"].items() if not math.isfinite(x)}
    assert unusual == {}
    assert line["metrics"]["policy/grad_norm"] > 0
