"""Every component of an algorithm learns the quickstart's task, with the options of the benchmark.

Hours of one core: ``make test-learning``. CI runs the first six estimators, in test_learning.py and
test_learning_with_a_critic.py.
"""

import argparse

import pytest
from benchmarks import learning

JOBS = list(learning.jobs_of(argparse.Namespace(seeds=[1], only=[], teacher=None)))
INSTALLED = {f"{kind}:{name}" for kind, name in learning.components()}


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("job", JOBS, ids=[job.label for job in JOBS])
def test_it_learns_to_reverse_digits(tmp_path, job):
    learning.prepare()

    result = learning.run(job, argparse.Namespace(output=tmp_path, steps=800))

    assert result.error == ""
    assert result.accuracy[0] < 0.10
    assert result.accuracy[-1] >= 0.90


def test_the_benchmark_runs_everything_that_is_installed():
    missing = {label for label in INSTALLED if not learning.can_import(label)}

    assert {job.label for job in JOBS} == INSTALLED - learning.NOT_ALONE.keys() - missing


def test_a_component_of_every_kind_is_installed():
    assert {label.partition(":")[0] for label in INSTALLED} == learning.KINDS.keys()


def test_options_of_the_benchmark_are_of_components_that_exist():
    named = learning.OPTIONS.keys() | learning.NOT_ALONE.keys() | learning.LIBRARIES.keys()

    assert named <= INSTALLED | learning.KINDS.keys()
