"""What a run asks its tokenizer is asked by ``--check`` too, where the files are on this machine."""

import json

import pytest

from rlhf_cli.main import main
from rlhf_testing.tiny import ALPHABET, tiny_tokenizer, write_tiny_model

TRAIN = "train --model model --data rows.jsonl --steps 1 --rollout.batch_size 2"
TEACHER = "--loss distill --algo.teacher.path"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with a model, one with another tokenizer, and rows."""
    write_tiny_model(tmp_path / "model", hidden_size=8, num_layers=1, num_heads=1)
    write_tiny_model(tmp_path / "other", hidden_size=8, num_layers=1, num_heads=1)
    tiny_tokenizer(ALPHABET[::-1]).save_pretrained(tmp_path / "other")
    rows = [{"prompt": f"{n}=", "answer": str(n), "response": str(n)} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    monkeypatch.chdir(tmp_path)


REFUSED = {
    "a variable that no template reads": (
        f"{TRAIN} --reward exact_match --data.chat --data.chat_template_kwargs.thinks false",
        "'thinks' would change nothing",
    ),
    "a teacher of other tokens": (f"{TRAIN} {TEACHER} other", "--algo.teacher.path other"),
    "a variable of a supervised command": (
        "sft --model model --data rows.jsonl --data.chat_template_kwargs.thinks false",
        "'thinks' would change nothing",
    ),
    "a supervised command's teacher": (
        "distill --model model --data rows.jsonl --teacher.path other",
        "--teacher.path other",
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_the_run_would_refuse_is_refused(here, capsys, words, said):
    assert main([*words.split(), "--check"]) == 2

    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        f"{TRAIN} {TEACHER} model",
        f"{TRAIN} {TEACHER} elsewhere/large",
        "distill --model model --data rows.jsonl --teacher.path model",
    ],
)
def test_the_same_tokenizer_and_files_that_are_elsewhere_are_taken(here, capsys, words):
    """Nothing is downloaded for a check."""
    assert main([*words.split(), "--check"]) == 0, capsys.readouterr().err
