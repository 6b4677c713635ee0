"""The table against the keys of SkyRL's own configuration, with their defaults."""

import tomllib
from pathlib import Path

import pytest

from rlhf_plugin_migrate.skyrl.main_base import migrate
from rlhf_plugin_migrate.skyrl.programs import TABLES
from rlhf_plugin_migrate.table.kinds import NUMBER, SWITCH, WHOLE
from rlhf_plugin_migrate.verl.common.hydra import options_of, pairs_of

THEIRS = tomllib.loads((Path(__file__).parent / "skyrl_keys.toml").read_text())
KEYS = TABLES["main_base"]
NAMED = {key: value for key, value in THEIRS.items() if key != "others"}


def test_every_key_of_skyrl_has_an_entry():
    keys = [*NAMED, *THEIRS["others"].split()]

    assert len(keys) == 368
    assert [key for key in keys if KEYS.find(key) is None] == []


@pytest.mark.parametrize("key", NAMED)
def test_defaults_are_those_of_skyrl(key):
    assert KEYS.find(key).default == (None if NAMED[key] == "null" else NAMED[key])


@pytest.mark.parametrize(
    "others",
    [
        [],
        ["trainer.algorithm.advantage_estimator=gae", "trainer.critic.model.path=m"],
        ["trainer.placement.colocate_all=false", "environment.env_class=search"],
        ["trainer.policy.model.lora.rank=8", "trainer.algorithm.policy_loss_type=sapo"],
        ["trainer.algorithm.use_kl_loss=false", "trainer.max_training_steps=10"],
    ],
)
def test_every_key_by_itself_has_a_line_in_the_report(others):
    values = {SWITCH: ("true", "false"), WHOLE: ("3", "1", "0"), NUMBER: ("0.5", "0")}
    for key, entry in KEYS.entries.items():
        for value in (*values.get(entry.kind, ("x", "[x]")), "null"):
            word = f"{key}={value}"
            outcome = migrate(options_of(*pairs_of([*others, word]), KEYS), "run_reward.py")

            assert [row for row in outcome.rows() if row.what == word], word


def test_a_key_that_skyrl_has_not_is_named_with_the_nearest():
    source = options_of(*pairs_of(["trainer.train_batchsize=4"]), KEYS)

    (row,) = migrate(source, "run_reward.py").rows()

    assert "SkyRL has no such key" in row.text
    assert "Did you mean trainer.train_batch_size?" in row.text
