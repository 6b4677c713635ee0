"""Evaluation, and the best checkpoint by it."""

import pytest

from rlhf_plugin_migrate.openrlhf.reinforcement.records import set_name
from rlhf_plugin_migrate.table.outcome import Status

EVAL = "--eval.dataset a/aime-2024,b.jsonl --eval.steps 5"


def test_evaluation_needs_a_set_and_a_number_of_steps(outcome):
    for flags in ("--eval.dataset a", "--eval.steps 5", "--eval.dataset a --eval.steps -1"):
        assert not [path for path in outcome(flags)[0] if path.startswith("eval.")]


def test_held_out_sets_have_names(outcome):
    settings, _ = outcome(EVAL)

    assert settings["eval.data"] == ["aime-2024=a/aime-2024", "b=b.jsonl"]
    assert (settings["eval.every"], settings["eval.at_start"]) == (5, False)
    assert (settings["eval.temperatures"], settings["eval.n_samples"]) == ([0.6], 4)


@pytest.mark.parametrize(
    ("key", "metric", "status"),
    [
        ("none", "none", Status.MAPPED),
        ("eval_default_pass1", "eval/aime-2024/T0.6/reward", Status.MAPPED),
        ("eval_default_pass4", "eval/aime-2024/T0.6/reward", Status.DIFFERS),
    ],
)
def test_the_best_checkpoint_is_of_the_mean_reward(outcome, key, metric, status):
    settings, rows = outcome(f"{EVAL} --ckpt.best_metric_key {key}")

    assert settings.get("checkpoint.best_metric") == metric
    assert rows[f"--ckpt.best_metric_key {key}"].status is status


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/b", "b"), ("/x/rows.test.jsonl", "rows"), ("a/b@c", "b"), ("x/", "x"), (".", "held_out")],
)
def test_names_of_sets(path, name):
    assert set_name(path) == name
