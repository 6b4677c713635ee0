"""The table of ``train_ppo_ray`` against the flags of released versions and against our own options."""

import tomllib
from pathlib import Path

import pytest

from rlhf_core import plugins as plugin_loader
from rlhf_core.config.run import RunConfig
from rlhf_core.config.sections import options_of
from rlhf_core.config.train import SLOTS
from rlhf_plugin_migrate.openrlhf import serve_rm
from rlhf_plugin_migrate.openrlhf.programs import NOT_MIGRATED
from rlhf_plugin_migrate.openrlhf.rl import FLAGS
from rlhf_plugin_migrate.openrlhf.train_ppo_ray import migrate
from rlhf_plugin_migrate.table.entries import Rule, To
from rlhf_plugin_migrate.table.kinds import (
    NUMBER,
    NUMBERS,
    PAIR,
    SHARES,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
)
from rlhf_plugin_migrate.trl.grpo_keys import KEYS

RELEASED = tomllib.loads((Path(__file__).parent / "openrlhf_flags.toml").read_text())
TABLES = {"train_ppo_ray": FLAGS, "serve_rm": serve_rm.FLAGS}
OF_COMMAND_LINES = (
    "runtime.ray.ranks",
    "runtime.ray.gpus_per",
    "engine.vllm.args",
    "backend.deepspeed.args",
)
"""Options that are tables, whose keys no model lists."""


@pytest.mark.parametrize("program", TABLES)
@pytest.mark.parametrize("version", RELEASED)
def test_every_flag_of_a_released_version_has_an_entry(version, program):
    table = TABLES[program]
    spelled = {spelling for entry in table.values() for spelling in (entry.name, *entry.old)}

    assert sorted(set(RELEASED[version][program]) - spelled) == []


def test_every_program_has_a_table_or_a_reason():
    assert set(RELEASED["0.11.2"]) == TABLES.keys() | NOT_MIGRATED.keys()


def test_the_four_trainers_have_203_flags_together():
    trainers = {
        program: flags for program, flags in RELEASED["0.11.2"].items() if "train" in program
    }

    assert len({name for flags in trainers.values() for name in flags}) == 203
    assert len(trainers["train_ppo_ray"]) == 167


@pytest.mark.parametrize("table", [FLAGS, KEYS], ids=["openrlhf", "trl"])
def test_every_option_that_the_table_names_exists(table):
    loaded = plugin_loader.load()
    known = set(options_of(RunConfig))
    for slot in SLOTS:
        for entry in loaded.registries[slot.hook]:
            section = f"{slot.section}.{entry.name}"
            known |= {f"{section}.{name}" for name in options_of(entry.component.config)}
            known |= {f"{section}.weight", f"{section}.timeout_s"}
    named = {
        option
        for entry in table.values()
        for option in (
            (entry.fate.option,)
            if isinstance(entry.fate, To)
            else entry.fate.options
            if isinstance(entry.fate, Rule)
            else ()
        )
    }

    assert len(named) > 80
    assert sorted(name for name in named - known if not name.startswith(OF_COMMAND_LINES)) == []


WORDS = {
    SWITCH: "",
    WHOLE: "2",
    NUMBER: "0.5",
    TEXT: "text",
    PAIR: "0.1 0.9",
    NUMBERS: "0.3",
    SHARES: "0.2,0.8",
    TEXTS: "q k",
}
BASES = {
    "critic and reward model": "--reward.model_name_or_path rm",
    "groups and a function": "--algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 4 "
    "--reward.remote_url f.py --algo.kl.use_loss --algo.kl.estimator k3",
    "sequences and servers": "--algo.advantage.estimator rloo --rollout.n_samples_per_prompt 4 "
    "--actor.policy_loss_type gspo --algo.advantage.is_correction_level seq --algo.kl.init_coef 0 "
    "--reward.remote_url http://a/b --train.colocate_all",
    "agent": "--algo.advantage.estimator reinforce --train.agent_func_path a.py --train.async_enable "
    "--train.dynamic_batch_enable --algo.dynamic_filtering_enable",
    "muon": "--actor.optim muon --critic.optim muon --reward.model_name_or_path rm --actor.lr_scheduler constant",
    "old correction": "--enable_vllm_is_correction --reward.model_name_or_path rm",
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_every_flag_gets_a_row_in_any_company_and_sets_no_undeclared_option(base):
    for entry in FLAGS.values():
        value = WORDS.get(entry.kind, entry.kind.name.removeprefix("one of ").partition(",")[0])
        common = "--actor.model_name_or_path m --data.prompt_dataset d --vllm.num_engines 2"
        words = f"{common} {base} --{entry.name} {value}".split()
        out = migrate(words, "reward.py")
        rows = list(out.rows())

        assert len(rows) == sum(word.startswith("--") for word in words), entry.name
        assert rows[-1].text, entry.name
        declared = entry.fate.options if isinstance(entry.fate, Rule) else None
        set_by_it = {
            path for path, setting in out.settings.items() if entry.name in setting.sources
        }
        if declared is not None:
            assert set_by_it <= set(declared), entry.name
