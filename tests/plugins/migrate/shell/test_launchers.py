"""The program of OpenRLHF in a command, whatever starts it."""

from pathlib import Path

import pytest

from rlhf_plugin_migrate.shell.launchers import launches_of
from rlhf_plugin_migrate.shell.script import commands


def launches(text):
    return launches_of(commands(text, {}, Path()))


@pytest.mark.parametrize(
    "launcher",
    [
        "python -m openrlhf.cli.train_ppo_ray",
        "python3 -u -m openrlhf.cli.train_ppo_ray",
        "deepspeed --include localhost:0,1 --module openrlhf.cli.train_ppo_ray",
        "torchrun --nproc_per_node 8 -m openrlhf.cli.train_ppo_ray",
        "torchrun /opt/openrlhf/cli/train_ppo_ray.py",
        "ray job submit --runtime-env-json='{\"x\": 1}' -- python3 -m openrlhf.cli.train_ppo_ray",
        "nohup env A=1 python -m openrlhf.cli.train_ppo_ray",
    ],
)
def test_the_flags_are_what_follows_the_module(launcher):
    (launch,) = launches(f"{launcher} --train.seed 3")

    assert (launch.program, launch.words) == ("train_ppo_ray", ("--train.seed", "3"))


def test_other_commands_are_no_launches():
    assert launches("pip install openrlhf\nray start --head\npython train.py") == []


def test_unresolved_parts_are_those_of_the_flags():
    (launch,) = launches("$PYTHON -m openrlhf.cli.train_ppo_ray --ckpt.path $SAVE/x")

    assert launch.unresolved == ("$SAVE",)


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        ("deepspeed --module", None),
        ("deepspeed --include localhost:0,1 --module", None),
        ("deepspeed --num_gpus 8 --module", 8),
        ("deepspeed --num_gpus=4 --num_nodes=2 --module", 8),
        ("torchrun --nproc_per_node 8 --nnodes 4 -m", 32),
        ("torchrun --nproc-per-node=2 -m", 2),
        ("torchrun --nproc_per_node gpu -m", None),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 -m", None),
        ("python -m", None),
    ],
)
def test_the_number_of_processes_is_that_of_the_launcher(launcher, processes):
    (launch,) = launches(f"{launcher} openrlhf.cli.train_sft --num_gpus 3")

    assert launch.processes == processes
