"""The tables against the flags of released versions of OpenRLHF, and against our own options."""

import tomllib
from pathlib import Path

import pytest

from rlhf_cli.runs import training_command
from rlhf_config.sections import options_of
from rlhf_core import plugins as plugin_loader
from rlhf_plugin_migrate.openrlhf.common.command_line import FLAGS as TABLES
from rlhf_plugin_migrate.openrlhf.programs import NOT_MIGRATED
from rlhf_plugin_migrate.table.entries import Rule, To
from rlhf_plugin_migrate.trl.scripts import SCRIPTS
from rlhf_plugin_migrate.verl.programs import TABLES as VERL

RELEASED = tomllib.loads((Path(__file__).parent / "openrlhf_flags.toml").read_text())
CONFIGURED = {
    "train_ppo_ray": ("train", TABLES["train_ppo_ray"]),
    "train_sft": ("sft", TABLES["train_sft"]),
    "train_rm": ("rm", TABLES["train_rm"]),
    "train_dpo": ("dpo", TABLES["train_dpo"]),
    "grpo": ("train", SCRIPTS["grpo"].keys),
    "sft": ("sft", SCRIPTS["sft"].keys),
    "dpo": ("dpo", SCRIPTS["dpo"].keys),
    "verl.main_ppo": ("train", VERL["main_ppo"].entries),
    "verl.sft_trainer": ("sft", VERL["sft_trainer"].entries),
    "verl.fsdp_sft_trainer": ("sft", VERL["fsdp_sft_trainer"].entries),
}
"""Program or script -> the command that takes its configuration, and its table."""
TABLES_OF_OPTIONS = (
    "runtime.ray.ranks",
    "runtime.ray.gpus_per",
    "engine.vllm.args",
    "data.chat_template_kwargs",
    "backend.deepspeed.args",
)
"""Options that are tables, whose keys no model lists."""


@pytest.mark.parametrize("program", TABLES)
@pytest.mark.parametrize("version", RELEASED)
def test_every_flag_of_a_released_version_has_an_entry(version, program):
    table = TABLES[program]
    spelled = {spelling for entry in table.values() for spelling in (entry.name, *entry.old)}

    assert sorted(set(RELEASED[version][program]) - spelled) == []


@pytest.mark.parametrize("program", TABLES)
def test_an_entry_is_a_flag_of_some_version(program):
    known = {flag for programs in RELEASED.values() for flag in programs[program]}
    removed = {"bf16", "flash_attn", "prompt_max_len", "generate_max_len"}  # Up to 0.9.
    removed |= {"algo.advantage.is_correction_enable", "algo.advantage.is_correction_type"}

    assert sorted(TABLES[program].keys() - known - removed) == []


def test_every_program_has_a_table_and_those_that_are_gone_have_none():
    assert set(RELEASED["0.11.2"]) == TABLES.keys()
    assert not NOT_MIGRATED.keys() & TABLES.keys()


def test_the_four_trainers_have_203_flags_together():
    trainers = {
        program: flags for program, flags in RELEASED["0.11.2"].items() if "train" in program
    }

    assert len({name for flags in trainers.values() for name in flags}) == 203
    assert len(trainers["train_ppo_ray"]) == 167


@pytest.mark.parametrize("program", CONFIGURED)
def test_every_option_that_a_table_names_exists(program):
    command, table = CONFIGURED[program]
    loaded = plugin_loader.load()
    tree = training_command(command, loaded).options
    known = set(options_of(tree.model))
    for selector in tree.selectors:
        for entry in loaded.registries[selector.hook]:
            section = f"{selector.section}.{entry.name}"
            known |= set(options_of(entry.component.config, section))
            if selector.path in tree.shared:
                known |= set(options_of(tree.shared[selector.path], section))
    named = set()
    for entry in table.values():
        if isinstance(entry.fate, To):
            named.add(entry.fate.option)
        elif isinstance(entry.fate, Rule):
            named |= set(entry.fate.options)

    assert len(named) > 30
    assert sorted(name for name in named - known if not name.startswith(TABLES_OF_OPTIONS)) == []
