"""What commands of plugins are given of a run."""

import pytest

from rlhf_cli.runs import read_run
from rlhf_core import ConfigError
from rlhf_core.plugins import load

RUN = ["--model", "some/model", "--data", "somebody/rows", "--reward", "exact_match"]


def test_a_run_is_read_as_train_reads_it():
    planned = read_run([*RUN, "--rollout.batch_size", "5", "--runtime", "local"], load())

    assert planned.run.rollout.batch_size == 5
    assert planned.runtime.name == "local:local"
    assert list(planned.spec.roles) == ["policy"]
    assert planned.spec.roles["policy"].model_path == "some/model"
    assert planned.max_length == 1024 + 256


def test_roles_are_those_that_components_need():
    planned = read_run([*RUN, "--estimator", "gae", "--algo.kl.coef", "0.1"], load())

    assert set(planned.spec.roles) == {"policy", "critic", "reference"}
    assert planned.demands.critic


def test_a_mistake_is_refused_as_train_refuses_it():
    with pytest.raises(ConfigError, match="batch_sizes"):
        read_run([*RUN, "--rollout.batch_sizes", "5"], load())
