"""Sets of prompts, and how a row becomes one."""

import pytest

from rlhf_plugin_migrate.openrlhf.common.sets import named
from rlhf_plugin_migrate.openrlhf.reinforcement.train_ppo_ray import migrate
from rlhf_plugin_migrate.table.outcome import Status


def prompt_settings(*words):
    settings = migrate(words, "reward.py").settings
    return {path: settings[path].value for path in settings if path.startswith("data.")}


def test_sets_with_shares(outcome):
    settings, rows = outcome(
        "--data.prompt_dataset a/b,c.jsonl --data.prompt_probs 0.3,0.7 --data.max_samples 50"
    )

    assert settings["data.train"] == ["a/b", "c.jsonl"]
    assert settings["data.probabilities"] == [0.3, 0.7]
    assert rows["--data.max_samples 50"].status is Status.DIFFERS


def test_all_samples_are_no_limit(outcome):
    assert "data.max_samples" not in outcome("--data.max_samples 1e8")[0]


@pytest.mark.parametrize("name", ["a/b@folder", "rows.arrow", "load.py"])
def test_sets_that_cannot_be_read_are_reported(outcome, name):
    assert (
        outcome(f"--data.prompt_dataset {name}")[1][f"--data.prompt_dataset {name}"].status
        is Status.MISSING
    )


def test_a_template_names_the_column():
    found = prompt_settings(
        "--data.input_template", "User: {}\nAssistant: ", "--data.input_key", "question"
    )

    assert found["data.template"] == "User: {question}\nAssistant: "
    assert "data.prompt_key" not in found
    assert "data.chat" not in found


def test_a_chat_template_is_taken_before_a_format():
    found = prompt_settings(
        "--data.input_template", "{}", "--data.input_key", "q", "--data.apply_chat_template"
    )

    assert (found["data.chat"], found["data.prompt_key"]) == (True, "q")
    assert "data.template" not in found


def test_a_format_without_a_place_is_ignored():
    assert prompt_settings("--data.input_template", "User:")["data.prompt_key"] == "input"


@pytest.mark.parametrize("template", ["Q: {} {{x}}", "{}", "}}{}{{"])
def test_a_named_template_gives_the_same_text(template):
    assert named(template, "column").format(column="text") == template.format("text")
