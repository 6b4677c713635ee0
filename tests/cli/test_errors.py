"""Errors as objects: ``rlhf --errors json``, its fields, and that each message has them where it can."""

import json
import re
from pathlib import Path

import pytest

from rlhf_cli import training
from rlhf_cli.errors import Form, report, split_form
from rlhf_core import ConfigError, errors
from rlhf_core.contracts import RunResult
from rlhf_testing.errors import has_code

RUN = ("--model", "./model", "--data", "rows.jsonl")
PAGE = Path(__file__).parent.parent.parent / "docs" / "errors.md"


@pytest.fixture
def failing(rlhf):
    """Run a command that fails and return its exit code and the object on the last line of stderr."""

    def run(*words):
        code, out, err = rlhf("--errors", "json", *words)
        assert out == ""
        return code, json.loads(err.splitlines()[-1])

    return run


def test_an_option_is_named_with_its_fix(folder, failing):
    code, found = failing("train", "--stepz", "3", "--data", "rows.jsonl")

    assert code == 2
    assert found == {
        "kind": "ConfigError",
        "code": "config/unknown-option",
        "message": "--stepz: there is no such option. Did you mean --steps?\n  also wrong: --model",
        "exit_code": 2,
        "option": "--stepz",
        "file": None,
        "row": None,
        "fix": "Did you mean --steps?",
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("train", *RUN, "--train.batch_size", "many"), "config/wrong-type"),
        (("train", *RUN, "--train.steps", "0"), "config/out-of-range"),
        (("train", "-c", "nowhere.toml"), "config/unreadable-file"),
        (("train", "--reward", "nobody"), "plugin/unknown-component"),
        (("nothing",), "usage/command-line"),
        (("show", "nowhere"), "run/no-folder"),
    ],
)
def test_the_mistake_has_a_code(folder, failing, words, code):
    assert failing(*words)[1]["code"] == code


def test_the_code_of_rows_is_the_kind_of_their_problem(folder, failing):
    (folder / "rows.jsonl").write_text('{"question": "why"}\n')
    (folder / "model/tokenizer.json").write_text("{}")
    words = (*RUN, "--reward", "reward.py:score", "--check")

    assert failing("train", *words)[1]["code"] == "data/missing-column"


def test_a_key_is_named_with_its_file(folder, failing):
    (folder / "run.toml").write_text("[train]\nsteps = 0\n")

    _, found = failing("train", "-c", "run.toml", "--model", "model", "--data", "rows.jsonl")

    assert (found["file"], found["option"]) == ("run.toml", "train.steps")


def test_a_file_that_is_no_toml_is_named_with_the_line(folder, failing):
    (folder / "run.toml").write_text("[train]\nsteps =\n")

    _, found = failing("train", "-c", "run.toml")

    assert (found["file"], found["row"], found["option"]) == ("run.toml", 2, None)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("check", "gae", "--nope"), "--nope"),
        (("new", "plugin", "mine"), "--kind"),
        (("nothing",), None),
    ],
)
def test_a_mistake_of_usage_is_an_object_too(failing, words, option):
    code, found = failing(*words)

    assert code == 2
    assert (found["kind"], found["option"]) == ("UsageError", option)
    assert found["message"]


@pytest.mark.parametrize(
    ("status", "kind", "code"), [("failed", "RunFailed", 1), ("interrupted", "Interrupted", 130)]
)
def test_a_run_that_ends_early_is_an_object(folder, failing, monkeypatch, status, kind, code):
    """Its message is the reason in the run's result."""
    ended = RunResult(status=status, steps=1, seconds=2.0, message="step 2: why")
    run = {"rlhf_trainer.loop.run:run": lambda resolved, plugins: ended}
    monkeypatch.setattr(training, "function_of", run.__getitem__)
    (folder / "model/tokenizer.json").write_text("{}")
    words = ["--model", "./model", "--data", "rows.jsonl", "--reward", "reward.py:score"]

    returned, found = failing("train", *words)

    assert (returned, found["exit_code"], found["kind"]) == (code, code, kind)
    assert found["code"] == f"run/{status}"
    assert found["message"] == "step 2: why"


def test_an_exception_that_nobody_foresaw_is_an_object(folder, failing, monkeypatch):
    """Behind its traceback."""

    def broken(_):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("rlhf_cli.training.split_arguments", broken)

    code, found = failing("train")

    assert code == 1
    assert (found["kind"], found["message"], found["exit_code"]) == (
        "ZeroDivisionError",
        "by zero",
        1,
    )
    assert found["code"] == "run/unforeseen"


def test_a_command_that_prints_why_it_failed_ends_with_an_object_too(folder, rlhf):
    """Findings are no exception: rows that a run would leave out, promises that a component breaks."""
    (folder / "rows.jsonl").write_text('{"prompt": 3}\n')

    code, out, err = rlhf("--errors", "json", "data", "check", "rows.jsonl")

    found = json.loads(err.splitlines()[-1])
    assert out
    assert code == found["exit_code"] != 0
    assert (found["kind"], found["code"]) == ("CommandFailed", "run/findings")


def test_the_variable_asks_for_objects_as_the_flag_does(folder, rlhf, monkeypatch):
    monkeypatch.setenv("RLHF_ERRORS", "json")

    code, _, err = rlhf("plugins", "show", "nobody")

    assert (code, json.loads(err)["kind"]) == (2, "UnknownComponent")


def test_the_next_command_of_a_process_writes_text_again(folder, rlhf):
    rlhf("--errors", "json", "plugins", "show", "nobody")

    _, _, err = rlhf("plugins", "show", "nobody")

    assert err.startswith("error: no installed plugin")


def test_a_command_that_succeeds_writes_no_object(rlhf):
    code, out, err = rlhf("--errors", "json", "plugins")

    assert code == 0
    assert "group_norm" in out
    assert not [line for line in err.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("words", [["--errors"], ["--errors", "xml"], ["--errors=xml", "plugins"]])
def test_another_form_is_refused(words):
    with pytest.raises(ConfigError, match="--errors", check=has_code("usage/unknown-value")):
        split_form(words)


def test_words_behind_the_command_are_the_commands():
    assert split_form(["train", "--errors", "json"]) == (Form.TEXT, ["train", "--errors", "json"])


@pytest.mark.parametrize(
    ("message", "place", "fix"),
    [
        ("rows.jsonl:3: broken JSON: x at column 4", (None, "rows.jsonl", 3), None),
        (
            "openai/gsm8k:main[train]:row 12: no column 'prompt'",
            (None, "openai/gsm8k:main", 12),
            None,
        ),
        ("a/b.csv: the file is empty; expected at least one row", (None, "a/b.csv", None), None),
        (
            "rollout.n_samples_per_prompt is 1; --estimator rloo needs at least 2 (it compares a prompt's samples). "
            "Set --rollout.n_samples_per_prompt 4.",
            ("rollout.n_samples_per_prompt", None, None),
            "Set --rollout.n_samples_per_prompt 4.",
        ),
        (
            "--executor multi_turn needs 'environment': choose one with --env.",
            ("--executor", None, None),
            "choose one with --env.",
        ),
        (
            "wandb:wandb needs wandb>=0.31 (not installed).\n  pip install 'rlhf-plugin-loggers[wandb]'",
            (None, None, None),
            "pip install 'rlhf-plugin-loggers[wandb]'",
        ),
        ("localhost:8000 does not answer", (None, None, None), None),
        (
            "rlhf eval compare: unrecognized arguments: --nope=1 2",
            ("--nope", None, None),
            None,
        ),
        ("rlhf merge: unrecognized arguments: three", (None, None, None), None),
        ("the engine ended", (None, None, None), None),
    ],
)
def test_fields_are_read_from_the_message(message, place, fix):
    found = report("RLHFError", message, 1)

    assert (found.option, found.file, found.row) == place
    assert found.fix == fix
    assert found.message == message


def test_the_page_lists_every_kind_with_its_exit_code():
    listed = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text(), flags=re.MULTILINE))
    kinds = {
        name: str(kind.exit_code)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.RLHFError)
    }

    assert listed == {
        **kinds,
        "UsageError": "2",
        "RunFailed": "1",
        "CommandFailed": "1",
        "Interrupted": "130",
    }
