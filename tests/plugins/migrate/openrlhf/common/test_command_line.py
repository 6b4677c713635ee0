"""Flags as argparse reads them."""

import pytest

from rlhf_plugin_migrate.openrlhf.common.command_line import FLAGS, read_flags


def read(text):
    return read_flags(text.split(), FLAGS["train_ppo_ray"])


@pytest.mark.parametrize(
    "text",
    [
        "--train.seed 7",
        "--train.seed=7",
        "--seed 7",
        "--train.se 7",
        "--train.seed 3 --train.seed 7",
    ],
)
def test_spellings_of_one_flag(text):
    assert read(text).whole("train.seed") == 7


def test_negative_numbers_are_values():
    source = read("--ckpt.save_steps -1 --reward.clip_range -2 2")

    assert source.whole("ckpt.save_steps") == -1
    assert source.numbers("reward.clip_range") == [-2.0, 2.0]


def test_defaults_hold_for_what_is_not_written():
    source = read("")

    assert source.number("critic.adam.lr") == 9e-6
    assert not source.given("critic.adam.lr")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--train.seed x", "expected a whole number, got x"),
        ("--train.seed", "expected a whole number, got nothing"),
        ("--actor.eps_clip_low_high 0.2", "expected two numbers"),
        ("--actor.policy_loss_type ppg", "expected one of ppo, gspo"),
        ("--train.colocate_all yes", "expected nothing"),
        ("--trian.seed 3", "Did you mean --train.seed?"),
        ("--train 3", "OpenRLHF has no such flag"),
        ("stray", "it belongs to no flag"),
    ],
)
def test_what_cannot_be_read_is_kept_with_the_reason(text, problem):
    (written,) = read(text).written

    assert problem in written.problem
    assert written.text == text


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [("--train.colocate_all", "train.colocate_all", True), ("--train.seed 7", "train.seed", 7)],
)
def test_a_variable_without_a_value_behind_a_flag_is_not_its_value(flag, name, value):
    """``--train.colocate_all $MORE_FLAGS``, which is empty in most runs."""
    source = read(f"{flag} ${{MORE[@]}}")

    assert [(one.text, one.problem) for one in source.written] == [
        (flag, ""),
        ("${MORE[@]}", "it belongs to no flag"),
    ]
    assert source.whole(name) == value


def test_a_key_of_a_service_is_not_repeated():
    (written,) = read("--logger.wandb.key abc").written

    assert written.text == "--logger.wandb.key ..."
