"""A run of a mixture of experts whose policy follows the engine's routes is killed and resumed."""

import os

import pytest

from rlhf_testing.tiny import write_tiny_model

from .forked_runs import (
    how_to_resume,
    metrics_without_times,
    records,
    train_in_a_fork,
    weights_digest,
    write_workspace,
)

FLAGS = (
    *("--algo.correction.replay_routes", "true", "--model.path", "mixture"),
    *("--train.steps", "4", "--checkpoint.every", "2", "--eval.every", "0"),
    *("--rollout.max_staleness", "1", "--algo.correction.kind", "tis"),
)
"""Samples are in flight when the run is killed."""


@pytest.mark.slow
def test_a_killed_run_with_routes_resumes_to_the_same_numbers(tmp_path):
    workspace = write_workspace(tmp_path)
    write_tiny_model(workspace / "mixture", "qwen3_moe", hidden_size=16, num_layers=2, num_heads=2)
    whole, killed = workspace / "whole", workspace / "killed"
    assert train_in_a_fork(workspace, "whole", *FLAGS) == 0, (tmp_path / "whole.log").read_text()
    assert os.WIFSIGNALED(train_in_a_fork(workspace, "killed", *FLAGS, fault="train:4"))

    resumed = train_in_a_fork(workspace, "killed", *FLAGS, "--resume", how_to_resume(killed))

    assert resumed == 0, (tmp_path / "killed.log").read_text()
    assert metrics_without_times(killed) == metrics_without_times(whole)
    assert weights_digest(killed) == weights_digest(whole)
    steps = records(whole, "metrics")
    assert len(steps) == 4
    assert all("policy/moe/replayed_differently" in step for step in steps)
    assert all("critic/moe/replayed_differently" not in step for step in steps)
    assert "routes" not in (whole / "samples.jsonl").read_text()
