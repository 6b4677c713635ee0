"""A run of NAME@REVISION is one of a commit, which stands in its folder, and goes on with no other one."""

import shutil

import pytest
from huggingface_hub import constants

from rlhf_config import pinned_models, read_toml
from rlhf_testing.tiny import write_tiny_model

OLD, NEW = "0" * 40, "1" * 40


@pytest.fixture
def model(workspace, monkeypatch):
    """The folder of a model that was downloaded earlier: the tag v1, and a later commit; there is no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(workspace / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = workspace / "cache" / "models--some--model"
    shutil.copytree(workspace / "model", folder / "snapshots" / OLD)
    write_tiny_model(folder / "snapshots" / NEW, hidden_size=16, num_layers=1, num_heads=2, seed=1)
    (folder / "refs").mkdir()
    (folder / "refs" / "v1").write_text(OLD)
    yield folder
    pinned_models._downloaded.cache_clear()


@pytest.fixture
def run(workspace):
    def call(*words):
        from rlhf_cli.main import main

        pinned_models._downloaded.cache_clear()
        small = "--rollout.batch_size 3 --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 4"
        small += " --data.max_prompt_tokens 8 --log.progress off --log.tensorboard false"
        start = ["train", "--data", "mine.jsonl", "--reward", "my_reward.py:score"]
        return main([*start, "--output", "run", *small.split(), *words])

    return call


def test_a_run_records_the_commit_and_resumes_with_it_alone(model, run, workspace, capsys):
    pinned = ("--model", "some/model@v1")

    assert run(*pinned, "--steps", "1") == 0
    options = read_toml(str(workspace / "run" / "config.toml")).values
    assert options["model"]["path"] == str(model / "snapshots" / OLD)

    assert run(*pinned, "--steps", "2", "--resume", "auto") == 0
    (model / "refs" / "v1").write_text(NEW)
    capsys.readouterr()

    assert run(*pinned, "--steps", "3", "--resume", "auto") == 2
    said = capsys.readouterr().err
    assert "model.path" in said
    assert OLD in said
    assert NEW in said
    assert run("--model", f"some/model@{OLD}", "--steps", "3", "--resume", "auto") == 0
