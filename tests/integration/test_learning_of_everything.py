"""Every estimator, loss, correction and optimizer learns the quickstart's task, with the options of the benchmark.

Hours of one core: ``make test-learning``. CI runs the first six estimators, in test_learning.py.
"""

import argparse

import pytest
from benchmarks import learning

JOBS = [
    job
    for job in learning.jobs_of(argparse.Namespace(seeds=[1], only=[], teacher=None))
    if job.label not in learning.NOT_ALONE
]


def options(folder, **changes):
    return argparse.Namespace(**{"output": folder, "steps": 800, **changes})


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("job", JOBS, ids=[job.label for job in JOBS])
def test_it_learns_to_reverse_digits(tmp_path, job):
    learning.prepare()

    result = learning.run(job, options(tmp_path))

    assert result.error == ""
    assert result.accuracy[0] < 0.10
    assert result.accuracy[-1] >= learning.LEARNED.get(job.label, 0.90)


def test_the_benchmark_runs_everything_that_is_installed():
    labels = {job.label for job in JOBS} | learning.NOT_ALONE.keys()

    installed = {
        f"{kind}:{entry.name}"
        for kind, (hook, _) in learning.KINDS.items()
        for entry in learning.plugins.load().registries[hook]
    }
    assert labels == installed


def test_options_of_the_benchmark_are_of_components_that_exist():
    labels = {job.label for job in JOBS} | {job.kind for job in JOBS}

    assert learning.OPTIONS.keys() <= labels
