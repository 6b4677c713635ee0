"""The run folder, checkpoints and logs."""

import pytest

from rlhf_plugin_migrate.table.outcome import Status


def test_checkpoints_and_folders(outcome):
    settings, rows = outcome(
        "--ckpt.output_dir out/ --ckpt.path ckpt --ckpt.save_steps 10 --ckpt.load_enable --ckpt.max_mem 100"
    )

    assert settings["output"] == "out"
    assert (settings["checkpoint.every"], settings["checkpoint.keep"]) == (10, 3)
    assert settings["resume.checkpoint"] == "auto"
    assert rows["--ckpt.max_mem 100"].status is Status.MISSING


def test_no_periodic_checkpoint_is_zero(outcome):
    assert outcome("--ckpt.save_steps -1")[0]["checkpoint.every"] == 0


def test_weights_and_biases_gets_the_run_where_openrlhf_gives_it_a_key(outcome):
    settings, rows = outcome(
        "--logger.wandb.key k --logger.wandb.org me --logger.wandb.run_name first"
    )

    assert settings["log.to"] == ["wandb"]
    assert settings["log.wandb.project"] == "openrlhf_train_ppo"
    assert (settings["log.wandb.entity"], settings["log.wandb.name"]) == ("me", "first")
    assert "log.wandb.group" not in settings
    assert rows["--logger.wandb.key ..."].status is Status.DIFFERS


@pytest.mark.parametrize("flag", ["org", "group", "project", "run_name"])
def test_nothing_is_logged_there_without_a_key(outcome, flag):
    settings, rows = outcome(f"--logger.wandb.{flag} x")

    assert not [path for path in settings if path.startswith(("log.to", "log.wandb"))]
    assert rows[f"--logger.wandb.{flag} x"].status is Status.NOTHING
