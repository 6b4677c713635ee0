"""The two examples that run anywhere: what their scripts write, their reward, and two steps of each."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REVERSE = ROOT / "examples" / "reverse_digits"
TWO_TURN = ROOT / "examples" / "two_turn"


def prepare(script: Path, output: Path, *flags: str) -> Path:
    subprocess.run(
        [sys.executable, script, "--output", output, *flags], check=True, capture_output=True
    )
    return output


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(REVERSE / "prepare.py", tmp_path_factory.mktemp("reverse"), "--digits", "3")


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_held_out_strings_are_not_trained_on(prepared):
    train, test = (rows_of(prepared / f"{name}.jsonl") for name in ("train", "test"))
    prompts = {row["prompt"] for row in train}

    assert prompts.isdisjoint(row["prompt"] for row in test)
    assert len(train) + len(test) == len(prompts) + len({row["prompt"] for row in test}) == 1000
    assert all(row["answer"] == row["prompt"][-2::-1] for row in train + test)


def test_the_same_flags_write_the_same_files(prepared, tmp_path):
    again = prepare(REVERSE / "prepare.py", tmp_path, "--digits", "3")

    for name in ("train.jsonl", "test.jsonl", "model/model.safetensors", "model/tokenizer.json"):
        assert (prepared / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.parametrize(
    ("response", "truncated", "expected"),
    [
        ("4321", False, 8.0),
        ("4321", True, 4.0),  # the end was not written
        ("1234", False, 0.0),
        ("4311", False, 6.0),
        ("43", False, 4.0),
        ("43", True, 2.0),
        ("", False, 0.0),
        ("43219", False, 4.0),  # written past the end
        ("4 21", False, 6.0),
    ],
)
def test_the_reward_counts_right_digits(response, truncated, expected):
    spec = importlib.util.spec_from_file_location("reward_of_reverse_digits", REVERSE / "reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.score(response, "4321", truncated) == pytest.approx(expected)


def run_two_steps(example: Path, output: Path, *flags: str) -> list[dict]:
    from rlhf_cli.main import main

    quiet = ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
    small = ["--steps", "2", "--rollout.batch_size", "4", "--runtime.local.threads", "1"]
    command = ["train", "-c", str(example / "run.toml"), "--output", str(output)]
    assert main([*command, *quiet, *small, *flags]) == 0
    return rows_of(output / "metrics.jsonl")


def test_the_quickstart_runs(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = ["--model", str(prepared / "model"), "--data", str(prepared / "train.jsonl")]
    held_out = ["--eval.data", f"held_out={prepared / 'test.jsonl'}", "--eval.max_samples", "8"]
    lines = run_two_steps(REVERSE, tmp_path / "run", *files, *held_out)

    assert [line["step"] for line in lines if "metrics" in line] == [1, 2]
    evaluated = [line["eval"]["eval/held_out/T0/pass@1"] for line in lines if "eval" in line]
    assert len(evaluated) == 2
    assert all(0.0 <= value <= 0.2 for value in evaluated), "random weights cannot reverse digits"


def test_the_two_turn_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    model = prepare(TWO_TURN / "prepare.py", tmp_path / "data") / "model"
    lines = run_two_steps(TWO_TURN, tmp_path / "run", "--model", str(model))

    assert lines[0]["metrics"]["rollout/turns"] == 2.0
