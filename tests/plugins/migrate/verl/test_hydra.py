"""Overrides as hydra reads them, and the files that it writes for a run."""

import pytest
import yaml

from rlhf_core import ConfigError
from rlhf_plugin_migrate.shell.script import ShellCommand
from rlhf_plugin_migrate.verl import programs
from rlhf_testing.errors import has_code

MODULE = "verl.trainer.main_ppo"


def migrated(*words):
    """Return settings as values by path, and rows by what was written."""
    launch = programs.verl_launch_of(ShellCommand(("python3", "-m", MODULE, *words), line=1))
    outcome = programs.launched(launch, None, "reward.py")
    settings = {path: setting.value for path, setting in outcome.settings.items()}
    return settings, {row.what: row for row in outcome.rows()}


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_an_override_may_add_its_key(sign):
    word = f"{sign}actor_rollout_ref.actor.optim.lr=1e-5"
    settings, rows = migrated(word)

    assert settings["actor.adam.lr"] == 1e-5
    assert rows[word].text == "actor.adam.lr = 1e-05"


def test_the_last_of_two_overrides_counts():
    settings, _ = migrated("data.max_prompt_length=1", "data.max_prompt_length=2")

    assert settings["data.max_prompt_tokens"] == 2


def test_values_are_null_lists_and_texts_with_other_keys():
    settings, _ = migrated(
        "trainer.logger=[console]",
        "trainer.total_training_steps=null",
        "trainer.project_name=p",
        "trainer.default_local_dir=runs/${trainer.project_name}/x",
        "data.train_files=['a.parquet', \"b.parquet\"]",
    )

    assert settings["output"] == "runs/p/x"
    assert settings["data.train"] == ["a.parquet", "b.parquet"]
    assert settings["train.epochs"] == 30
    assert "eval.data" in settings
    assert "eval.data" not in migrated("data.val_files=null")[0]
    assert "log.to" not in settings


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data.max_promt_length=1", "Did you mean data.max_prompt_length?"),
        (
            "data.max_prompt_length=${N}",
            "expected a whole number, got ${N}; verl's default is assumed",
        ),
        ("algorithm.use_kl_in_reward=maybe", "expected true or false, got maybe"),
        ("~trainer.logger", "a key that is taken out has no counterpart"),
        ("stray", "expected KEY=VALUE"),
    ],
)
def test_what_is_not_understood_is_named(word, expected):
    _, rows = migrated(word)

    assert expected in rows[word].text


def test_the_file_of_another_engine_chooses_it(tmp_path):
    settings, _ = migrated("--config-path=config", "--config-name=ppo_megatron_trainer.yaml")

    assert settings["backend.name"] == "deepspeed"


def test_a_file_of_the_users_is_read_and_overridden(tmp_path):
    keys = {"data": {"train_batch_size": 64, "max_prompt_length": 7}, "defaults": ["ppo_trainer"]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
    settings, _ = migrated(
        f"--config-path={tmp_path}", "--config-name", "mine", "data.max_prompt_length=8"
    )

    assert (settings["rollout.batch_size"], settings["data.max_prompt_tokens"]) == (64, 8)


def test_a_file_that_is_not_here_is_named():
    _, rows = migrated("--config-path=/nowhere", "--config-name=mine")

    assert "mine.yaml is not on this machine" in rows["--config-name=mine"].text


def test_overrides_of_a_run(run, workspace, tmp_path):
    words = [
        "data.train_files=rows.jsonl",
        "algorithm.adv_estimator=rloo",
        "actor_rollout_ref.rollout.n=4",
        f"actor_rollout_ref.model.path={workspace['MODEL']}",
    ]
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(words))

    found = run("overrides.yaml", "--from", "verl")

    assert found.code == 0, found.report
    assert found.config["algo"]["advantage"]["estimator"] == "rloo"


def test_the_whole_configuration_of_a_run_says_what_it_has_of_its_own(run, workspace, tmp_path):
    keys = {
        "actor_rollout_ref": {
            "_target_": "verl.X",
            "model": {"path": workspace["MODEL"], "external_lib": None},
            "actor": {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "use_dynamic_bsz": False},
            "rollout": {"n": 8, "name": "vllm", "disable_log_stats": True}
            | {"engine_kwargs": {"vllm": {"max-num-seqs": 64}}, "prometheus": {"port": 9090}},
        },
        "algorithm": {"adv_estimator": "grpo"},
        "data": {"train_files": ["rows.jsonl"], "val_files": None, "return_raw_chat": True},
        "trainer": {"resume_mode": "auto", "logger": ["console"], "val_before_train": False},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(keys))

    found = run("config.yaml", "--from", "verl")

    assert found.code == 0, found.report
    assert found.config["algo"]["loss"]["ppo"]["clip_high"] == 0.28
    assert found.config["eval"] == {"at_start": False}
    assert found.config["engine"]["vllm"]["args"] == {"max_num_seqs": 64}
    assert "overrides.yaml beside it" in " ".join(found.report.split())
    for silent in (
        "disable_log_stats",
        "return_raw_chat",
        "clip_ratio_low",
        "external_lib",
        "_target_",
    ):
        assert silent not in found.report


@pytest.mark.parametrize("text", ["a: [", "7"])
def test_a_file_of_another_kind_is_an_error(text):
    with pytest.raises(ConfigError, check=has_code("migrate/unreadable-script")):
        programs.program_of_text(text, "config.yaml")


@pytest.mark.parametrize(
    ("keys", "program"),
    [
        (["actor_rollout_ref.rollout.n=1"], "main_ppo"),
        (["model.path=x"], "sft_trainer"),
        (["model.partial_pretrain=x"], "fsdp_sft_trainer"),
    ],
)
def test_keys_say_which_program_a_file_is_for(keys, program):
    assert programs.program_of_text(yaml.safe_dump(keys), "f.yaml")[0] == program
