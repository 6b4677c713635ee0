"""What commands of plugins are given of a run."""

import pytest

from rlhf_cli.runs import read_options, read_run, training_command
from rlhf_core import ConfigError, UnknownComponent
from rlhf_core.plugins import load
from rlhf_testing.errors import has_code

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
    with pytest.raises(ConfigError, match="batch_sizes", check=has_code("config/unknown-option")):
        read_run([*RUN, "--rollout.batch_sizes", "5"], load())


@pytest.mark.parametrize("name", ["train", "sft", "rm"])
def test_a_command_that_trains_is_found_by_its_name(name):
    command = training_command(name, load())

    assert command.options.command == name
    words = RUN if name == "train" else RUN[:4]
    assert read_options(command, words, load()).run.model.path == "some/model"


@pytest.mark.parametrize("name", ["migrate", "nothing"])
def test_a_command_that_does_not_train_is_refused(name):
    with pytest.raises(
        UnknownComponent, match=f"rlhf {name}: ", check=has_code("usage/no-training-command")
    ):
        training_command(name, load())
