"""Runs of the commands that train on rows, which fail in a step: the step before is saved, or, where no copy of it is
kept, the error of a failed update says how far a resume falls back. A folder has what ``rlhf show`` says."""

import json
import re

import pytest

from rlhf_cli.main import main
from rlhf_core import RLHFError, long_work
from rlhf_core.storage.run_folder import RunFolder
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.training.updater import Updater

from .forked_runs import QUIET, metrics_without_times, saved_steps, weights_digest

ANSWERS = [{"prompt": f"{n}=", "response": str(n)} for n in range(8)]
PAIRS = [{"prompt": f"{n}=", "chosen": str(n), "rejected": "?"} for n in range(8)]
STEPS = [{"prompt": f"{n}=", "completions": ["1", "2"], "labels": [True, False]} for n in range(8)]
COMMANDS = {
    "sft": (ANSWERS, ()),
    "dpo": (PAIRS, ()),
    "rm": (PAIRS, ()),
    "prm": (STEPS, ()),
    "distill": (ANSWERS, ("--teacher.path", "teacher")),
}
UNRECORDED = ("--log.samples", "0")
"""Leaves ``rlhf show`` no rows to print, so that it says how far the run came."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("model", "teacher")):
        write_tiny_model(folder / name, hidden_size=16, num_layers=1, num_heads=2, seed=seed)
    return folder


@pytest.fixture(params=COMMANDS)
def command(request, models, tmp_path, monkeypatch):
    """Runs ``rlhf COMMAND`` for four steps with further flags, and returns the exit code."""
    monkeypatch.chdir(tmp_path)
    rows, flags = COMMANDS[request.param]
    for name in ("model", "teacher"):
        (tmp_path / name).symlink_to(models / name)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    words = ["--model", "model", "--data", "rows.jsonl", *flags, "--steps", "4"]

    def run(*more):
        return main([request.param, *words, "--train.batch_size", "2", *QUIET, *more])

    return run


def fail_in_update(monkeypatch, method, number, *, after=False):
    """Let the n-th update of all fail where it calls a method of its ``Updater``, or when that has done its work."""
    plain, calls = getattr(Updater, method), []

    def failing(self, *arguments):
        calls.append(None)
        if len(calls) != number:
            return plain(self, *arguments)
        if after:
            plain(self, *arguments)
        raise RLHFError("broken for the test")

    monkeypatch.setattr(Updater, method, failing)


def test_a_command_says_what_it_reads_and_writes_where_that_takes_long(
    command, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(long_work, "FIRST_S", 0.0)

    assert command("--output", "run") == 0

    told = [line for line in caplog.messages if line.endswith(" s so far")]
    assert told[0].startswith("reading the files that a resumed run compares: ")
    assert re.match(r"reading the weights of (reward )?model model: ", told[1])
    assert told[-1].startswith("writing the model to run/model: ")


def test_a_command_that_fails_before_an_update_goes_on_from_the_step_before(
    command, tmp_path, monkeypatch, capfd
):
    with monkeypatch.context() as patched:
        fail_in_update(patched, "drop_gradient", 3)
        assert command("--output", "run", *UNRECORDED) == 1
    assert "broken for the test" in capfd.readouterr().err
    assert saved_steps(tmp_path / "run") == [2]
    assert main(["show", "run"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "It has finished 2 steps" in said
    assert "the newest checkpoint is step-00000002" in said

    assert command("--output", "run", *UNRECORDED, "--resume", "auto") == 0
    assert command("--output", "whole", *UNRECORDED) == 0
    resumed, whole = tmp_path / "run", tmp_path / "whole"
    assert metrics_without_times(resumed) == metrics_without_times(whole)
    assert weights_digest(resumed) == weights_digest(whole)


@pytest.mark.slow
def test_a_command_that_fails_when_weights_have_changed_goes_on_from_the_step_before(
    command, tmp_path, monkeypatch, capfd
):
    with monkeypatch.context() as patched:
        fail_in_update(patched, "update", 3, after=True)
        assert command("--output", "run") == 1
    assert "broken for the test" in capfd.readouterr().err
    assert saved_steps(tmp_path / "run") == [2]
    assert "weights may have changed" not in (tmp_path / "run/run.log").read_text()

    assert command("--output", "run", "--resume", "auto") == 0
    assert command("--output", "whole") == 0
    resumed, whole = tmp_path / "run", tmp_path / "whole"
    assert metrics_without_times(resumed) == metrics_without_times(whole)
    assert weights_digest(resumed) == weights_digest(whole)


def test_a_command_that_keeps_no_copy_and_fails_within_an_update_says_that_it_starts_over(
    command, tmp_path, monkeypatch, capfd
):
    with monkeypatch.context() as patched:
        fail_in_update(patched, "update", 3)
        assert command("--output", "run", *UNRECORDED, "--checkpoint.undo_gib", "0") == 1
    fate = (
        "step 2 could not be saved: no checkpoint was due before, and --resume restart starts over"
    )
    assert fate in (tmp_path / "run/run.log").read_text()
    assert "--resume restart" in capfd.readouterr().out  # the summary's next command
    assert saved_steps(tmp_path / "run") == []
    assert main(["show", "run"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "It has finished 2 steps" in said
    assert "no checkpoint is there" in said

    assert command("--output", "run", "--checkpoint.undo_gib", "0", "--resume", "auto") == 2
    assert "--resume restart" in capfd.readouterr().err
    assert len(RunFolder(tmp_path / "run").metrics.read_text().splitlines()) == 2
