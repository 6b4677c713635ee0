"""A column that an option names and no row has is refused before a run, by ``--check`` and ``--dry-run`` too."""

import json

import pytest

from rlhf_cli.main import main

ROWS = {
    "answers": {"prompt": "1", "response": "2"},
    "pairs": {"prompt": "1", "chosen": "2", "rejected": "3"},
    "labeled": {"prompt": "1", "completion": "2", "label": True},
    "steps": {"prompt": "1", "completions": ["2", "3"], "labels": [True, False]},
    "shared": {"conversations": [{"from": "human", "value": "1"}, {"from": "gpt", "value": "2"}]},
    "asked": {"question": "1", "answer": "2"},
}
SFT = "sft --model some/model --data answers.jsonl"
TRAIN = "train --model some/model --data answers.jsonl --reward reward.py:score"
IMITATING = f"{TRAIN} --algo.terms.use sft --supervised.data"
MISSPELLED = {
    f"{SFT} --data.response_key respnse": ("--data.response_key", "respnse", "response"),
    f"{SFT} --data.prompt_key promt": ("--data.prompt_key", "promt", "prompt"),
    f"{SFT} --data.tools_key respons": ("--data.tools_key", "respons", "response"),
    f"{SFT} --data.template {{promt}}": ("--data.template", "promt", "prompt"),
    f"{SFT} --data.image_key promp --data.chat --model.vision vlm": (
        "--data.image_key",
        "promp",
        "prompt",
    ),
    "distill --model some/model --teacher.path t --data answers.jsonl --data.response_key respnse": (
        "--data.response_key",
        "respnse",
        "response",
    ),
    "dpo --model some/model --data pairs.jsonl --data.chosen_key chsen": (
        "--data.chosen_key",
        "chsen",
        "chosen",
    ),
    "dpo --model some/model --data labeled.jsonl --preference.loss kto --data.label_key lable": (
        "--data.label_key",
        "lable",
        "label",
    ),
    "rm --model some/model --data pairs.jsonl --data.rejected_key rejectd": (
        "--data.rejected_key",
        "rejectd",
        "rejected",
    ),
    "prm --model some/model --data steps.jsonl --data.labels_key labls": (
        "--data.labels_key",
        "labls",
        "labels",
    ),
    f"{TRAIN} --data.prompt_key promt": ("--data.prompt_key", "promt", "prompt"),
    f"{IMITATING} answers.jsonl --supervised.response_key respnse": (
        "--supervised.response_key",
        "respnse",
        "response",
    ),
    f"{IMITATING} answers.jsonl --supervised.prompt_key promt": (
        "--supervised.prompt_key",
        "promt",
        "prompt",
    ),
    "eval some/model --data answers.jsonl --reward reward.py:score --data.prompt_key promt": (
        "--data.prompt_key",
        "promt",
        "prompt",
    ),
    "generate --model some/model --data answers.jsonl --data.prompt_key promt": (
        "--data.prompt_key",
        "promt",
        "prompt",
    ),
}
READ = (
    "sft --model some/model --data asked.jsonl --data.prompt_key question --data.response_key answer",
    "sft --model some/model --data shared.jsonl --data.messages_key conversations",
    # The form makes this column.
    "sft --model some/model --data shared.jsonl --data.form sharegpt --data.messages_key messages",
    # One set has it.
    "sft --model some/model --data shared.jsonl answers.jsonl --data.form columns --data.response_key response",
    "sft --model some/model --data answers.jsonl --data.template {prompt[0]}",
    # It is the hub's, and nothing is downloaded.
    "sft --model some/model --data some/set --data.response_key nowhere",
)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, row in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    (tmp_path / "reward.py").write_text("def score(response):\n    return 1.0\n")


@pytest.mark.parametrize("words", MISSPELLED)
def test_a_misspelled_column_is_refused_with_those_that_are_there(rows, capsys, words):
    option, column, meant = MISSPELLED[words]

    assert main([*words.split(), "--check"]) == 2

    said = capsys.readouterr().err
    assert f"error: {option} " in said
    assert "no row of" in said
    assert f"has the column {column!r}. Did you mean {meant!r}?" in said
    assert "\n  Columns: " in said


def test_a_dry_run_says_it_behind_the_plan(rows, capsys):
    words = f"{SFT} --data.response_key respnse --dry-run"

    assert main(words.split()) == 0
    assert (
        "not ready to run: --data.response_key respnse: no row of answers.jsonl"
        in capsys.readouterr().err
    )


def test_the_rows_held_out_need_the_column_too(rows, capsys):
    words = "sft --model some/model --data asked.jsonl --data.prompt_key question --data.response_key answer"

    assert main([*words.split(), "--eval.data", "answers.jsonl", "--check"]) == 2
    assert "no row of answers.jsonl has the column 'question'" in capsys.readouterr().err


@pytest.mark.parametrize("words", READ)
def test_a_column_that_is_there_is_accepted(rows, capsys, words):
    assert main([*words.split(), "--check"]) == 0, capsys.readouterr().err
