"""What ``rlhf new environment`` writes, as its author publishes it: a wheel in a clean virtual environment."""

import json
import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from rlhf_cli.new import write_package
from rlhf_testing.tiny import write_tiny_model


def command(*words, **options):
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def clean(tmp_path):
    """Python of a virtual environment that sees what is installed here, and nothing of the new package."""
    command(sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean")
    python = tmp_path / "clean" / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(command(python, "-c", code).strip())
    (site / "shared.pth").write_text("\n".join(path for path in sys.path if os.path.isdir(path)))
    return python


@pytest.mark.slow
def test_the_wheel_of_a_new_environment_is_checked_trained_on_and_evaluated(
    tmp_path, clean, monkeypatch
):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = write_package("my-game", "environment", tmp_path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    command(*pip, "wheel", *offline, "--no-build-isolation", "-w", tmp_path / "dist", folder)
    (wheel,) = (tmp_path / "dist").glob("rlhf_env_my_game-0.1.0-*.whl")
    command(*pip, "--python", clean, "install", *offline, wheel)
    model = write_tiny_model(
        tmp_path / "model",
        alphabet=string.printable[:95],
        hidden_size=16,
        num_layers=1,
        num_heads=2,
    )

    report = command(clean, "-m", "rlhf_cli", "env", "check", "my_game", "--json", cwd=tmp_path)
    command(
        *(clean, "-m", "rlhf_cli", "train", "-c", folder / "eval.toml", "--model", model),
        *("--steps", 2, "--rollout.batch_size", 2, "--rollout.n_samples_per_prompt", 2),
        *("--rollout.max_new_tokens", 4, "--eval.max_samples", 3, "--output", tmp_path / "run"),
        cwd=tmp_path,
    )

    command(
        *(clean, "-m", "rlhf_cli", "eval", tmp_path / "run", "--env", "my_game"),
        *("--rollout.max_length", 256, "--rollout.max_new_tokens", 4, "--eval.max_samples", 3),
        *("--eval.n_samples", 2, "--eval.temperatures", 1, "--output", tmp_path / "eval"),
        cwd=tmp_path,
    )

    assert json.loads(report)["failed"] == 0
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines if "metrics" in line] == [1, 2]
    evaluated = [line["eval"] for line in lines if "eval" in line]
    assert len(evaluated) == 2, "before the first step and after the last"
    assert all("eval/my_game/T1/pass@4" in values for values in evaluated)
    record = json.loads((tmp_path / "run" / "plugins.json").read_text())["history"][-1]
    assert record["environments"] == {"my_game": "my_game@1"}
    assert record["plugins"]["env_my_game"] == "rlhf-env-my-game 0.1.0"
    episodes = (tmp_path / "eval" / "episodes.jsonl").read_text().splitlines()
    assert len(episodes) == 3 * 2
