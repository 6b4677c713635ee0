"""Optimizers, schedules, the critic and the averaged policy."""

import pytest

from rlhf_plugin_migrate.openrlhf.reinforcement.train_ppo_ray import migrate
from rlhf_plugin_migrate.table.outcome import Status


def test_muon_has_its_own_rate_and_adam_for_the_rest(outcome):
    settings, rows = outcome(
        "--actor.optim muon --actor.muon.lr 0.01 --actor.adam.lr 2e-6 --actor.adam.weight_decay 0.1 "
        "--actor.max_norm 0 --actor.muon.ns_steps 3"
    )

    assert settings["actor.optim"] == "muon"
    assert settings["actor.muon.lr"] == 0.01
    assert settings["actor.muon.adjust_lr"] == "original"
    assert settings["actor.muon.adam_lr"] == 2e-6
    assert settings["actor.muon.weight_decay"] == 0.1
    assert settings["actor.max_norm"] == "none"
    assert rows["--actor.adam.weight_decay 0.1"].status is Status.DIFFERS
    assert rows["--actor.muon.ns_steps 3"].status is Status.NOTHING


@pytest.mark.parametrize(
    ("name", "schedule", "floor", "warmup"),
    [
        ("cosine_with_min_lr", "cosine", 0.1, 0.03),
        ("cosine", "cosine", 0.0, 0.03),
        ("linear", "linear", 0.0, 0.03),
        ("constant", "constant", None, 0.0),
        ("constant_with_warmup", "constant", None, 0.03),
        ("inverse_sqrt", "inverse_sqrt", None, 0.03),
    ],
)
def test_schedules_of_transformers(outcome, name, schedule, floor, warmup):
    settings, _ = outcome(f"--actor.lr_scheduler {name}")

    assert settings["actor.lr_schedule"] == schedule
    assert settings.get("actor.min_lr_ratio") == floor
    assert settings["actor.warmup_ratio"] == warmup


def test_an_inverse_root_without_a_warm_up_has_the_timescale_of_transformers(outcome):
    with_one, _ = outcome("--actor.lr_scheduler inverse_sqrt")
    without, _ = outcome("--actor.lr_scheduler inverse_sqrt --actor.lr_warmup_ratio 0")

    assert "actor.inverse_sqrt.timescale" not in with_one
    assert without["actor.inverse_sqrt.timescale"] == 10_000


def test_an_unknown_schedule_is_missing(outcome):
    _, rows = outcome("--actor.lr_scheduler polynomial")

    assert rows["--actor.lr_scheduler polynomial"].status is Status.MISSING


def test_a_flat_flag_sets_both_roles(outcome):
    settings, rows = outcome("--l2 0.1 --lr_warmup_ratio 0.2")

    assert settings["actor.adam.weight_decay"] == settings["critic.adam.weight_decay"] == 0.1
    assert settings["actor.warmup_ratio"] == settings["critic.warmup_ratio"] == 0.2
    assert "actor.adam.weight_decay" in rows["--l2 0.1"].text


def test_flags_of_the_critic_do_nothing_without_one(outcome):
    settings, rows = outcome(
        "--algo.advantage.estimator reinforce --critic.adam.lr 1e-5 --critic.model_name_or_path c "
        "--critic.freezing_steps 3"
    )

    assert not [path for path in settings if path.startswith("critic.")]
    assert rows["--critic.adam.lr 1e-5"].status is Status.NOTHING


@pytest.mark.parametrize(("steps", "ours"), [(-1, 0), (0, 1), (10, 11)])
def test_steps_for_the_critic_alone_count_from_zero(outcome, steps, ours):
    settings, _ = outcome(f"--critic.freezing_steps {steps}")

    assert settings["critic.warmup_steps"] == ours


def test_a_critic_is_not_started_from_a_reward_model():
    """It is loaded as a whole language model, which a reward model is not."""
    out = migrate(["--reward.model_name_or_path", "r"], "reward.py")

    assert "critic.path" not in out.settings
    (row,) = (row for row in out.default_rows() if "critic.model_name_or_path" in row.what)
    assert "it starts from the policy here" in row.text


def test_a_critic_of_ones_own_is_kept(outcome):
    settings, rows = outcome("--critic.model_name_or_path c --reward.model_name_or_path r")

    assert settings["critic.path"] == "c"
    assert rows["--critic.model_name_or_path c"].status is Status.DIFFERS


def test_an_average_only_with_its_switch(outcome):
    assert outcome("--train.enable_ema --train.ema_beta 0.9")[0]["actor.ema"] == 0.9
    settings, rows = outcome("--train.ema_beta 0.9")
    assert "actor.ema" not in settings
    assert rows["--train.ema_beta 0.9"].status is Status.NOTHING
