"""Every command that trains from Python: the same weights as from the command line, steps, learning rates, resume."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

import rlhf
from rlhf_cli.main import main
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

QUIET = {"progress": "off", "summary": False, "tensorboard": False, "curve": False}
SAYINGS = [{"prompt": f"{a}+{b}=", "response": f"{a + b:02d}"} for a in range(3) for b in range(3)]
PAIRS = [
    {"prompt": f"{a}?", "chosen": str(a + b), "rejected": str(a)}
    for a in range(3)
    for b in range(1, 4)
]
SOLUTIONS = [
    {"prompt": f"{a}:", "completions": [str(a), str(b)], "labels": [True, b > a]}
    for a in range(3)
    for b in range(3)
]
ROWS = {"sft": SAYINGS, "distill": SAYINGS, "dpo": PAIRS, "rm": PAIRS, "prm": SOLUTIONS}
MORE = {"distill": {"teacher": {"path": "teacher", "top_k": 4}}}
"""Options that one of the commands needs beside its rows."""
EVERY_COMMAND = [
    "sft",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("dpo", "rm", "prm", "distill")),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model`` and ``teacher``."""
    size = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    write_tiny_model(tmp_path / "model", **size)
    write_tiny_model(tmp_path / "teacher", **size, initializer_range=0.5, seed=7)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(name, output, **more):
    return {
        "model": "model",
        "data": ROWS[name],
        "steps": 3,
        "train.batch_size": 4,
        "actor.adam.lr": 1e-2,
        "log": QUIET,
        "output": output,
        **MORE.get(name, {}),
        **more,
    }


def weights_of(run):
    return hashlib.sha256((Path(run) / "model/model.safetensors").read_bytes()).hexdigest()


def as_command(name, output):
    """Train from the command line, with the same rows in a file."""
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    words = ["--model", "model", "--data", "rows.jsonl", "--steps", "3", "--train.batch_size", "4"]
    words += ["--actor.adam.lr", "0.01", "--output", output, "--log.progress", "off"]
    words += ["--log.summary", "false", "--log.tensorboard", "false", "--log.curve", "false"]
    if name == "distill":
        words += ["--teacher.path", "teacher", "--teacher.top_k", "4"]
    assert main([name, *words]) == 0
    return weights_of(output)


@pytest.mark.parametrize("name", EVERY_COMMAND)
def test_a_script_a_cell_and_the_command_line_train_the_same_weights(folder, name):
    command = rlhf.command(name)

    async def cell():
        return command.train(**options(name, "cell"))

    others = [{**row, "prompt": "9" + row["prompt"]} for row in ROWS[name]]
    result = command(**options(name, "script"), eval={"data": others})
    assert asyncio.run(cell()).status == "finished"

    assert weights_of("script") == weights_of("cell") == as_command(name, "cli")
    assert (result.status, result.steps) == ("finished", 3)
    assert {row["step"] for row in result.samples()} == {1, 2, 3}
    assert all("example" in row for row in result.samples())
    assert result.model == Path("script/model")
    assert list(result.frame().index) == [0, 1, 2, 3]
    assert any(column.startswith("eval/") for column in result.frame())
    assert "<svg" in result._repr_html_(), "without rewards the curve is that of the loss"


@pytest.mark.parametrize("name", EVERY_COMMAND)
def test_steps_a_changed_rate_a_stop_and_the_rest_give_the_weights_of_one_run(folder, name):
    command, heard = rlhf.command(name), []
    with command.start(**options(name, "whole")) as run:
        for step in run:
            if step.number == 1:
                run.set_learning_rate(1e-3)
    with command.start(**options(name, "run"), callbacks=[lambda step: heard.append(step)]) as run:
        for step in run:
            if step.number == 1:
                run.set_learning_rate(1e-3)
            if step.number == 2:
                run.stop()
    assert (run.result.status, run.result.steps, heard) == ("interrupted", 2, [1, 2])

    result = command.train(**options(name, "run", resume="auto"))

    assert weights_of("run") == weights_of("whole")
    role = "reward_model" if name in ("rm", "prm") else "policy"
    factors = [row.get(f"{role}/lr_factor") for row in result.metrics()]
    assert factors == [None, pytest.approx(0.1), pytest.approx(0.1)]
    command.train(**options(name, "plain"))
    assert weights_of("plain") != weights_of("whole")


def test_what_is_wrong_is_said_in_the_commands_own_words(folder):
    with pytest.raises(
        ConfigError, match=r"rollout\.batch_size", check=has_code("config/unknown-option")
    ):
        rlhf.sft(**options("sft", "run"), rollout={"batch_size": 3})
    with pytest.raises(
        ConfigError, match=r"role 'critic': expected policy$", check=has_code("run/learning-rate")
    ):
        rlhf.sft.start(**options("sft", "run")).scale_learning_rate(0.5, role="critic")
    text = rlhf.dpo.describe(**options("dpo", "other", model="nowhere/at/all"))
    assert "not ready to run: keyword model nowhere/at/all" in text
    assert not Path("other").exists()


def test_a_line_says_what_auto_has_chosen_as_on_the_command_line(folder, capsys):
    def mine(response):
        return len(response)

    run = {"model": "model", "data": [{"prompt": "1="}], "reward": mine, "steps": 1, "log": QUIET}
    run |= {"rollout": {"batch_size": 1, "n_samples_per_prompt": 2, "max_new_tokens": 2}}

    rlhf.start(**run, output="run")

    said = capsys.readouterr().err
    (chosen,) = [line for line in said.splitlines() if line.startswith("engine ")]
    assert chosen.startswith("engine embedded: on CPUs")
    Path("rows.jsonl").write_text('{"prompt": "1="}\n')
    Path("mine.py").write_text("def mine(response):\n    return len(response)\n")
    assert (
        main(
            [
                "train",
                "--model",
                "model",
                "--data",
                "rows.jsonl",
                "--reward",
                "mine.py:mine",
                "--check",
            ]
        )
        == 0
    )
    assert chosen in capsys.readouterr().err
