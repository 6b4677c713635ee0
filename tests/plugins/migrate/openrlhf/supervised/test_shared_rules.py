"""Ranks, lengths, held-out sets and the columns of pairs."""

import pytest

from rlhf_plugin_migrate.openrlhf.supervised import train_dpo
from rlhf_plugin_migrate.table.outcome import Status


def test_the_number_of_processes_is_that_of_the_launcher_or_one_with_a_warning(learned):
    assert learned("train_dpo", "", processes=16)[0]["runtime.ray.ranks.policy"] == 16
    assert learned("train_dpo", "", processes=None)[0]["runtime.ray.ranks.policy"] == 1
    assert learned("train_rm", "", processes=16)[0]["runtime.ray.ranks.reward_model"] == 16
    warnings = train_dpo.migrate([], None).warnings
    assert [text for text in warnings if "--processes N" in text]


@pytest.mark.parametrize(
    ("flags", "split"),
    [
        ("--eval.dataset a --eval.split train", Status.MAPPED),
        ("--eval.dataset a.jsonl --eval.split test", Status.NOTHING),
        ("--eval.dataset a --eval.split test", Status.MAPPED),
        ("--eval.split test", Status.NOTHING),
    ],
)
def test_held_out_sets_are_read_with_a_split_of_their_own(learned, flags, split):
    settings, rows = learned("train_sft", flags)

    given = flags.split()[-1]
    assert rows[f"--eval.split {given}"].status is split
    assert settings.get("eval.split") == (given if split is Status.MAPPED else None)


@pytest.mark.parametrize(
    ("flags", "every", "status"),
    [
        ("--eval.steps 50", 50, Status.MAPPED),
        ("--eval.steps -1 --train.max_epochs 1", None, Status.MAPPED),
        ("--eval.steps -1 --train.max_epochs 3", None, Status.DIFFERS),
    ],
)
def test_evaluations_are_counted_in_updates(learned, flags, every, status):
    settings, rows = learned("train_sft", f"--eval.dataset a.jsonl {flags}")

    assert settings["eval.data"] == ["a.jsonl"]
    assert settings["eval.at_start"] is False
    assert settings.get("eval.every") == every
    assert rows[" ".join(flags.split()[:2])].status is status


def test_answers_that_are_whole_conversations_need_no_prompt(learned):
    settings, rows = learned("train_dpo", "--data.apply_chat_template --data.input_template {}")

    assert "data.prompt_key" not in settings
    assert "data.template" not in settings
    assert rows["--data.apply_chat_template"].status is Status.NOTHING


def test_a_template_is_put_around_a_prompt(learned):
    settings, _ = learned("train_rm", "--data.prompt_key q --data.input_template 'Q: {}'")

    assert settings["data.template"] == "Q: {q}"
    assert "data.prompt_key" not in settings


def test_texts_without_a_prompt_are_warned_of():
    warnings = train_dpo.migrate([], 1).warnings

    assert [text for text in warnings if "rows need a column data.prompt_key" in text]


@pytest.mark.parametrize("program", ["train_sft", "train_dpo"])
def test_shares_of_sets_go_over(learned, program):
    settings, rows = learned(program, "--data.dataset a,b.jsonl --data.dataset_probs 0.3,0.7")

    assert settings["data.train"] == ["a", "b.jsonl"]
    assert settings["data.probabilities"] == [0.3, 0.7]
    assert rows["--data.dataset_probs 0.3,0.7"].status is Status.DIFFERS


def test_what_no_file_can_say_is_missing(learned):
    _, rows = learned("train_sft", "--data.tokenizer_chat_template x")

    assert {row.status for row in rows.values()} == {Status.MISSING}


@pytest.mark.parametrize(("given", "expected"), [("0.1", 0.1), ("0", "none")])
def test_the_balancing_loss_of_experts_goes_over(learned, given, expected):
    settings, _ = learned("train_sft", f"--model.aux_loss_coef {given}")

    assert settings["actor.router_aux_loss"] == expected
