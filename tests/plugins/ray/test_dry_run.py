"""``--dry-run`` of commands that train tells the placement without Ray being there."""

import pytest

from rlhf_cli.main import main

RUN = [
    "train",
    "--model",
    "m",
    "--data",
    "d",
    "--reward",
    "exact_match",
    "--backend",
    "fsdp",
    "--runtime",
    "ray",
    "--dry-run",
]


def test_it_names_the_sets_and_what_each_gets(capsys):
    flags = ["--runtime.ray.ranks.policy", "4", "--runtime.ray.engines", "2", "--estimator", "gae"]
    flags += ["--runtime.ray.colocate", "policy+critic", "--runtime.ray.rollout_workers", "8"]

    assert main([*RUN, *flags]) == 0

    out = capsys.readouterr().out
    assert "policy x4 + critic x1: 4 x (1 CPU, 1 GPU)" in out
    assert "engine x2: 2 x (1 CPU, 1 GPU)" in out
    assert "rollout x8: 8 x (1 CPU)" in out
    assert "only if the cluster has any" in out


def test_what_contradicts_itself_is_refused_by_then(capsys):
    assert main([*RUN, "--runtime.ray.ranks.critic", "2"]) == 2

    assert "runtime.ray.ranks names critic; this run has policy" in capsys.readouterr().err


@pytest.mark.parametrize("gpus", ["0", "2"])
def test_gpus_that_are_given_depend_on_nothing(capsys, gpus):
    flags = ["--runtime.ray.colocate", "none"]
    flags += ["--runtime.ray.gpus_per.policy", gpus, "--runtime.ray.gpus_per.engine", gpus]

    assert main([*RUN, *flags]) == 0

    out = capsys.readouterr().out
    assert "if the cluster has any" not in out
    assert ("2 GPU" in out) == (gpus == "2")


EXAMPLES = ["--model", "m", "--data", "d", "--runtime", "ray", "--backend", "fsdp", "--dry-run"]


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_commands_that_train_on_examples_place_their_ranks_alone(capsys, command):
    assert main([command, *EXAMPLES, "--runtime.ray.ranks.policy", "4"]) == 0

    out = capsys.readouterr().out
    assert "policy x4: 4 x (1 CPU, 1 GPU)" in out
    assert "engine" not in out.partition("placement")[2].partition("data")[0]


@pytest.mark.parametrize("command", ["train", "sft", "dpo"])
def test_several_ranks_of_a_backend_of_one_process_are_refused_by_then(capsys, command):
    words = RUN[1:] if command == "train" else EXAMPLES
    of_one = ["torch" if word == "fsdp" else word for word in words]

    assert main([command, *of_one, "--runtime.ray.ranks.policy", "4"]) == 2

    assert "--backend torch trains in one process only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runtime.ray.engines", "2"], "--runtime.ray.engines would change nothing: nothing gen"),
        (["--runtime.ray.learner", "process"], "--runtime.ray.learner would change nothing"),
        (["--runtime.ray.gpus_per.engine", "1"], "gpus_per names engine; this run has policy"),
    ],
)
def test_options_of_engines_are_refused_where_nothing_generates(capsys, words, message):
    assert main(["sft", *EXAMPLES, *words]) == 2

    assert message in capsys.readouterr().err
