"""Rows of ``data.source``: drawn into the run folder, trained on as those of a file, and read again after a resume."""

import json

import pytest
from tests.integration.forked_runs import QUIET, metrics_without_times

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

SOURCE = ["--data.source", "jsonl_stream", "--data.jsonl_stream.path", "rows.jsonl"]
COMMANDS = {
    "sft": lambda a: {"response": str(a)},
    "rm": lambda a: {"chosen": str(a), "rejected": "no"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with a tiny ``model``."""
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_rows(folder, command, numbers):
    rows = ({"prompt": f"{a}=", **COMMANDS[command](a)} for a in numbers)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(command, *words):
    shape = ["--train.batch_size", "4", "--data.cache", "off", *QUIET]
    return main([command, "--model", "model", *shape, *words])


@pytest.mark.parametrize("command", COMMANDS)
def test_rows_of_a_source_are_trained_on_as_those_of_a_file(folder, command):
    write_rows(folder, command, range(10))

    assert run(command, *SOURCE, "--steps", "2", "--output", "drawn") == 0
    assert run(command, "--data", "drawn/rows.jsonl", "--steps", "2", "--output", "given") == 0

    assert metrics_without_times(folder / "drawn") == metrics_without_times(folder / "given")
    assert len((folder / "drawn" / "rows.jsonl").read_text().splitlines()) == 8


def test_a_resumed_run_reads_the_rows_that_it_drew(folder, capfd):
    write_rows(folder, "sft", range(10))
    shape = [*SOURCE, "--data.max_samples", "8", "--output", "run"]
    assert run("sft", *shape, "--steps", "1") == 0
    drawn = (folder / "run" / "rows.jsonl").read_bytes()
    write_rows(folder, "sft", range(50, 60))

    assert run("sft", *shape, "--steps", "2", "--resume", "auto") == 0
    assert (folder / "run" / "rows.jsonl").read_bytes() == drawn

    (folder / "run" / "rows.jsonl").unlink()
    assert run("sft", *shape, "--steps", "3", "--resume", "auto") != 0
    assert "expected the rows that the run drew of --data.source" in capfd.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (SOURCE, "a source has no known end, so there are no epochs to count"),
        ([*SOURCE, "--steps", "1", "--data", "rows.jsonl"], "rows come from one of them"),
        ([*SOURCE, "--steps", "1", "--data.split", "a"], "rows of --data.source have no splits"),
    ],
)
def test_options_that_contradict_a_source_are_named(folder, capfd, command, words, message):
    write_rows(folder, command, range(3))

    assert run(command, *words) == 2

    assert message in capfd.readouterr().err
