"""Launches of TRL's scripts: the same outcome as that of the YAML file with the same keys."""

from pathlib import Path

import pytest
import yaml

from rlhf_core import ConfigError
from rlhf_plugin_migrate.shell.script import ShellCommand, commands
from rlhf_plugin_migrate.trl.launched import refusal_of, trl_launch_of, yaml_of
from rlhf_testing.errors import has_code


def launched(text):
    return trl_launch_of(ShellCommand(tuple(text.split()), line=1))


def no_file(path):
    raise AssertionError(path)


@pytest.mark.parametrize(
    ("text", "program", "processes"),
    [
        ("trl grpo --beta 0.1", "grpo", None),
        ("trl kto --beta 0.1", "kto", None),
        ("accelerate launch --num_processes 8 trl/scripts/dpo.py --beta 0.1", "dpo", 8),
        ("accelerate launch examples/scripts/gspo.py --beta 0.1", "grpo", None),
        ("torchrun --nproc-per-node 2 -m trl.scripts.sft --beta 0.1", "sft", 2),
    ],
)
def test_a_launch_is_known_by_its_script(text, program, processes):
    launch = launched(text)

    assert (launch.program, launch.processes) == (program, processes)
    assert launch.words == ("--beta", "0.1")


@pytest.mark.parametrize(
    "text", ["echo trl", "dpo.py --from trl -o a.toml", "python train.py", "pip install trl"]
)
def test_other_commands_are_no_launch(text):
    assert launched(text) is None


def test_flags_are_the_keys_of_a_file():
    words = (
        "--use_peft --learning-rate=1e-6 --lora_target_modules q_proj v_proj --reward_weights 0.5"
    )

    keys = yaml.safe_load(yaml_of(launched(f"trl grpo {words} --bf16 false"), no_file))

    assert keys == {
        "use_peft": True,
        "learning_rate": "1e-6",
        "lora_target_modules": ["q_proj", "v_proj"],
        "reward_weights": [0.5],
        "bf16": False,
    }


def test_a_variable_without_a_value_behind_another_word_is_not_its_value():
    """It holds further flags, and is empty in most runs; alone it is the value."""
    (command,) = commands("trl sft --learning_rate 1e-6 $MORE --seed $SEED", {}, Path("/"))

    launch = trl_launch_of(command)

    assert yaml.safe_load(yaml_of(launch, no_file)) == {"learning_rate": "1e-6", "seed": "$SEED"}
    assert launch.unresolved == ("$MORE", "$SEED")


def test_flags_win_over_the_file_of_config():
    launch = launched("trl sft --config a.yaml --seed 2 --num_processes 4")

    keys = yaml.safe_load(yaml_of(launch, {"a.yaml": "seed: 1\nmax_length: 8"}.__getitem__))

    assert keys == {"seed": 2, "max_length": 8}
    assert launch.processes == 4


def test_a_word_without_a_flag_is_refused():
    with pytest.raises(ConfigError, match="stray", check=has_code("migrate/missing-flag")):
        yaml_of(launched("trl sft stray"), no_file)


def test_a_script_without_a_table_has_its_counterpart_named():
    assert "rlhf dpo --preference.loss kto does the same" in refusal_of("kto")
    assert refusal_of("env") == "trl env: expected grpo, sft or dpo"


def test_what_only_a_shell_could_work_out_is_named():
    words = ("trl", "sft", "--output_dir", "out-$(date)")

    launch = trl_launch_of(ShellCommand(words, line=1, unresolved=("$(date)", "$X")))

    assert launch.unresolved == ("$(date)",)
