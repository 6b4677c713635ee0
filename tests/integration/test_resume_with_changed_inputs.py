"""A run that goes on after its data or model was changed in place says so, and is refused by ``--resume.strict``."""

import json
from functools import partial
from pathlib import Path

import pytest

from rlhf_cli.main import main
from rlhf_config import input_digests
from rlhf_testing.tiny import write_tiny_model
from rlhf_trainer.loop import driver

from .forked_runs import QUIET

TINY = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}


@pytest.fixture
def sft(workspace):
    """``sft(*words, code=0)``: ``rlhf sft`` on the workspace, in this process."""
    rows = [{"prompt": f"{n}+1=", "response": f"{n + 1}"} for n in range(8)]
    (workspace / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def run(*words, code=0):
        common = ["--model", "model", "--data", "sums.jsonl", "--output", "run", *QUIET]
        assert main(["sft", *common, "--train.batch_size", "4", *words]) == code

    return run


@pytest.fixture
def begun(request, train, sft):
    """The command, after one step."""
    if request.param == "sft":
        sft("--steps", "1")
        return sft, "sums.jsonl"
    train("run", "--steps", "1")
    return (lambda *words, code=0: train("run", *words, code=code)), "mine.jsonl"


def reverse_rows(data):
    file = Path(data)
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    return f"--data.train {data} has other content: sha256:"


def write_other_weights(data):
    write_tiny_model(Path("model"), **TINY, seed=3)
    return "--model.path model has other content: sha256:"


@pytest.mark.parametrize("change", [reverse_rows, write_other_weights])
@pytest.mark.parametrize("begun", ["train", "sft"], indirect=True)
def test_what_changed_in_place_is_said_and_refused_by_strict(begun, change, caplog, capsys):
    run, data = begun
    expected = change(data)
    capsys.readouterr()

    run("--steps", "2", "--resume", "auto", "--resume.strict", code=2)
    refused = capsys.readouterr().err
    run("--steps", "2", "--resume", "auto")

    assert refused.count(expected) == 1
    assert "Traceback" not in refused
    (told,) = [text for text in caplog.messages if "has other content" in text]
    assert expected in told
    assert told in Path("run/run.log").read_text()


@pytest.mark.parametrize("begun", ["train", "sft"], indirect=True)
@pytest.mark.parametrize("kept", [slice(1, None), slice(None)], ids=["fewer", "more"])
def test_another_number_of_rows_is_refused(begun, kept, capsys):
    """The place of a run is a number of steps: among other rows some would be learned twice, and some never."""
    run, data = begun
    lines = Path(data).read_text().splitlines(keepends=True)
    Path(data).write_text("".join([*lines[kept], *([] if kept.start else [lines[0]])]))
    capsys.readouterr()

    run("--steps", "2", "--resume", "auto", code=2)

    told = capsys.readouterr().err
    assert "as there were when the checkpoint was made; now there are" in told
    assert f"now there are {len(lines) - 1 if kept.start else len(lines) + 1}" in told


def test_a_checkpoint_with_digests_of_blocks_goes_on_and_then_every_row_counts(
    sft, capsys, monkeypatch
):
    for name, value in (("WHOLE_BYTES", 10), ("BLOCK_BYTES", 1), ("NUM_BLOCKS", 2)):
        monkeypatch.setattr(input_digests, name, value)
    with monkeypatch.context() as earlier:
        of_blocks = partial(input_digests.input_digests, sampled=True)
        earlier.setattr(driver, "input_digests", of_blocks)
        sft("--steps", "1")

    sft("--steps", "2", "--resume", "auto", "--resume.strict")
    file = Path("sums.jsonl")
    file.write_text(file.read_text().replace("4+1=", "1+4="))  # of the same length
    capsys.readouterr()
    sft("--steps", "3", "--resume", "auto", "--resume.strict", code=2)

    assert "--data.train sums.jsonl has other content: sha256-all:" in capsys.readouterr().err
