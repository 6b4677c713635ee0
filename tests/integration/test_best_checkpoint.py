"""A run keeps the checkpoint of its best evaluation without an option, and says what writes that one's model."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import QUIET

EVALUATED = ("--eval.every", "1", "--checkpoint.every_minutes", "0", "--checkpoint.keep", "1")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """The current directory, with ``model``, ``rows.jsonl`` to train on, and ``others.jsonl`` with other answers, on
    which a model gets worse once it knows the first by heart."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    lines = [
        {"prompt": f"{a}?", "response": "1", "chosen": "1", "rejected": str(a), "answer": "1"}
        for a in range(3, 11)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    others = [
        line | {"prompt": f"{line['prompt']}!", "response": "2", "chosen": "2"} for line in lines
    ]
    (tmp_path / "others.jsonl").write_text("\n".join(map(json.dumps, others)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept():
    return [int(path.name[5:]) for path in sorted(Path("run/checkpoints").glob("step-*"))]


def evaluations(name):
    """The values of a metric by step, without that before the first one."""
    lines = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["eval"][name] for line in lines if "eval" in line and line["step"]}


@pytest.mark.parametrize(
    ("command", "metric"), [("sft", "eval/nll"), ("dpo", "eval/loss"), ("rm", "eval/loss")]
)
def test_the_best_by_the_loss_of_held_out_rows_stays_beside_the_last(rows, capsys, command, metric):
    words = [
        "--model",
        "model",
        "--data",
        "rows.jsonl",
        "--eval.data",
        "others.jsonl",
        "--output",
        "run",
    ]
    many = ["--train.steps", "16", "--train.batch_size", "4", "--actor.adam.lr", "0.01"]

    assert main([command, *words, *many, *EVALUATED, *QUIET]) == 0

    losses = evaluations(metric)
    best = min(losses, key=losses.__getitem__)
    assert kept() == sorted({best, 16})
    said = capsys.readouterr().out
    if command == "sft":
        assert best < 14, "these rows are to have their best in the middle"
        check_that_the_command_writes_the_best(said, best)


def test_the_best_by_the_held_out_reward_stays_beside_the_last(train, workspace):
    flags = ["--eval.fraction", "0.3", "--eval.temperatures", "1.0", "--reward", "vary.py:vary"]

    train("run", *flags, *EVALUATED, "--steps", "5")

    rewards = evaluations("eval/mine/T1/reward")
    best = max(rewards, key=lambda step: (rewards[step], -step))
    assert kept() == sorted({best, 5})


def test_of_no_metric_the_last_ones_stay(train, workspace):
    train(
        "run",
        "--eval.fraction",
        "0.3",
        *EVALUATED,
        "--checkpoint.best_metric",
        "none",
        "--steps",
        "3",
    )

    assert kept() == [3]


def check_that_the_command_writes_the_best(said, best):
    """Run the command that the summary names, and compare the model that it writes with the best checkpoint's."""
    (line,) = [
        line for line in said.splitlines() if "writes the model of the best evaluation" in line
    ]
    words = shlex.split(line.removeprefix("next").strip(), comments=True)

    assert main(words[1:]) == 0

    written = AutoModelForCausalLM.from_pretrained("run-best/model").state_dict()
    saved = load_file(f"run/checkpoints/step-{best:08d}/policy/model.safetensors")
    assert saved.keys() <= written.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in saved.items())
