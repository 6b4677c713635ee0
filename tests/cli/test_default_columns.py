"""A column that nobody named and no row has is refused by ``--check`` and ``--dry-run``, in the words of the run."""

import json

import pytest

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

CHAT = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
ROWS = {
    "asked": {"question": "1", "reply": "2"},
    "prompts": {"prompt": "1"},
    "answers": {"prompt": "1", "response": "2"},
    "completions": {"prompt": "1", "completion": "2"},
    "chats": {"messages": CHAT},
    "pairs": {"prompt": "1", "chosen": "2", "rejected": "3"},
    "halves": {"prompt": "1", "chosen": "2"},
    "labeled": {"prompt": "1", "completion": "2", "label": True},
    "steps": {"prompt": "1", "completions": ["2", "3"], "labels": [True, False]},
    "unlabeled": {"prompt": "1", "completions": ["2", "3"]},
}
TRAIN = "train --model model --reward reward.py:score --data"
IMITATING = f"{TRAIN} prompts.jsonl --algo.terms.use sft --supervised.data"
EVAL = "eval model --reward reward.py:score --data"
KTO = "dpo --model model --preference.loss kto --data"
REFUSED = {
    f"{TRAIN} asked.jsonl": ("data.train", "prompt"),
    f"{TRAIN} prompts.jsonl --eval.every 1 --eval.data asked.jsonl": ("eval.data", "prompt"),
    f"{IMITATING} prompts.jsonl": ("supervised.data", "response"),
    f"{EVAL} asked.jsonl": ("data.train", "prompt"),
    f"{EVAL} prompts.jsonl asked.jsonl": ("data.train", "prompt"),
    "generate --model model --data asked.jsonl": ("data.train", "prompt"),
    "sft --model model --data asked.jsonl": ("data.train", "prompt"),
    "sft --model model --data prompts.jsonl": ("data.train", "response"),
    "sft --model model --data answers.jsonl --eval.data prompts.jsonl": ("eval.data", "response"),
    "distill --model model --teacher.path model --data asked.jsonl": ("data.train", "prompt"),
    "dpo --model model --data halves.jsonl": ("data.train", "rejected"),
    f"{KTO} completions.jsonl": ("data.train", "label"),
    "rm --model model --data halves.jsonl": ("data.train", "rejected"),
    "prm --model model --data unlabeled.jsonl": ("data.train", "labels"),
}
TAKEN = (
    f"{TRAIN} answers.jsonl",
    f"{TRAIN} asked.jsonl --data.template {{question}}",
    f"{TRAIN} chats.jsonl --data.form messages",
    f"{IMITATING} answers.jsonl",
    f"{EVAL} prompts.jsonl",
    "generate --model model --data prompts.jsonl",
    "sft --model model --data answers.jsonl completions.jsonl chats.jsonl",
    "sft --model model --data asked.jsonl answers.jsonl --data.form columns --data.on_bad_row skip",
    "distill --model model --teacher.path model --data chats.jsonl",
    "dpo --model model --data pairs.jsonl",
    f"{KTO} labeled.jsonl",
    "rm --model model --data pairs.jsonl",
    "prm --model model --data steps.jsonl",
    "sft --model model --data some/set",
)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    for name, row in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * 8)
    (tmp_path / "reward.py").write_text("def score(response):\n    return 1.0\n")


def refusal(words, capsys):
    """Return what a command that is refused says: the message of its error."""
    assert main(words) == 2, capsys.readouterr().out
    return capsys.readouterr().err.partition("error: ")[2]


@pytest.mark.parametrize("words", REFUSED)
def test_it_is_refused_in_the_words_of_the_run(rows, capsys, words):
    option, column = REFUSED[words]

    said = refusal([*words.split(), "--check"], capsys)

    assert said.startswith(f"{option}: 8 of 8 rows cannot be used (8 missing column)\n")
    assert f"expected a column {column!r}; the row has " in said
    assert said == refusal([*words.split(), "--output", "run"], capsys)


def test_a_dry_run_says_it_behind_the_plan(rows, capsys):
    assert main(["sft", "--model", "model", "--data", "asked.jsonl", "--dry-run"]) == 0

    said = capsys.readouterr().err
    assert "not ready to run: data.train: 8 of 8 rows cannot be used (8 missing column)" in said


def test_rows_of_another_command_are_refused_too(rows, capsys):
    said = refusal(["sft", "--model", "model", "--data", "pairs.jsonl", "--check"], capsys)

    assert said.startswith("pairs.jsonl: these look like preference pairs; expected ")


@pytest.mark.parametrize("words", TAKEN)
def test_rows_that_a_run_takes_are_accepted(rows, capsys, words):
    assert main([*words.split(), "--check"]) == 0, capsys.readouterr().err
