"""Every option of every framework with the value 0, by itself: a configuration with a report, or an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlhf_plugin_migrate
from rlhf_core import ConfigError
from rlhf_plugin_migrate.document import report_of
from rlhf_plugin_migrate.jobs import jobs_of
from rlhf_plugin_migrate.shell.script import ShellCommand
from rlhf_plugin_migrate.table.option_table import tables_of
from rlhf_plugin_migrate.verl.reinforcement.engine_keys import vllm_argument
from rlhf_testing.errors import has_code

SOURCE = Path(rlhf_plugin_migrate.__file__).parent
OPENRLHF = "--actor.model_name_or_path m --data.prompt_dataset d.jsonl"
TRL = "--model_name_or_path m --dataset_name d.jsonl --reward_funcs r.f --output_dir o"
COMMANDS = {
    ("openrlhf", "train_ppo_ray"): (
        f"python3 -m openrlhf.cli.train_ppo_ray {OPENRLHF} --reward.remote_url r.py",
        "--{} 0",
    ),
    ("trl", "grpo"): (f"trl grpo {TRL}", "--{} 0"),
    ("trl", "sft"): (f"trl sft {TRL}", "--{} 0"),
    ("trl", "dpo"): (f"trl dpo {TRL}", "--{} 0"),
    ("verl", "main_ppo"): (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m data.train_files=d.parquet",
        "{}=0",
    ),
    ("skyrl", "main_base"): (
        "python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=m",
        "{}=0",
    ),
}
"""Folder of a framework and program of its table -> a launch, and how an option is written."""


def migrate(command: str) -> None:
    for job in jobs_of([ShellCommand(tuple(command.split()), 1)], "a script", None).runs:
        report_of(job.migrate("rewards.py"), job.origin)


@pytest.mark.parametrize(("framework", "program"), list(COMMANDS))
def test_an_option_of_zero_is_migrated_or_refused(framework, program):
    launch, spelling = COMMANDS[framework, program]
    tables = tables_of(SOURCE / framework / "options.toml", {"VLLM_ARGUMENT": vllm_argument})
    refused = {}

    for name in tables[program].entries:
        try:
            migrate(f"{launch} {spelling.format(name)}")
        except ConfigError as error:
            refused[name] = error.code

    assert {code.partition("/")[0] for code in refused.values()} <= {"migrate"}, refused
    assert len(refused) < len(tables[program].entries) / 4


@pytest.mark.parametrize(
    "command",
    [
        f"trl grpo {TRL} --num_generations 0",
        f"trl grpo {TRL} --gradient_accumulation_steps 0",
        f"python3 -m openrlhf.cli.train_ppo_ray {OPENRLHF} --reward.remote_url r.py --rollout.max_new_tokens 0",
    ],
)
def test_a_number_of_things_is_at_least_one(command):
    with pytest.raises(
        ConfigError, match="expected at least 1, got 0", check=has_code("migrate/not-a-count")
    ):
        migrate(command)
