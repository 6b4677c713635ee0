"""Each flag of ``train_ppo_ray`` in the company of others."""

import pytest

from rlhf_plugin_migrate.openrlhf.common.command_line import FLAGS
from rlhf_plugin_migrate.openrlhf.reinforcement.train_ppo_ray import migrate
from rlhf_plugin_migrate.table.entries import Rule
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
    "an adapter": "--ds.lora.rank 8 --ds.load_in_4bit --reward.remote_url f.py --algo.advantage.estimator rloo",
    "old correction": "--enable_vllm_is_correction --reward.model_name_or_path rm",
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_every_flag_gets_a_row_in_any_company_and_sets_no_undeclared_option(base):
    for entry in FLAGS["train_ppo_ray"].values():
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
