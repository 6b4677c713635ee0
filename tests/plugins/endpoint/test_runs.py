"""Whole runs with an agent behind the endpoint: what it learns, and that a kill changes nothing."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.integration.forked_runs import (
    how_to_resume,
    metrics_without_times,
    run_in_a_fork,
    weights_digest,
)

from rlhf_testing.tiny import write_tiny_model

AGENT = Path(__file__).with_name("two_turn_agent.py")
COMMON = (
    *("--model", "model", "--rollout.max_new_tokens", "1", "--rollout.max_length", "32"),
    *("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"),
    *("--runtime.local.threads", "1", "--actor.adam.lr", "3e-3"),
)
ENDPOINT = (
    *("--executor", "endpoint", "--rollout.endpoint.agent", f"{AGENT}:agent"),
    *("--data", "data.jsonl", "--data.max_prompt_tokens", "8"),
)

pytestmark = pytest.mark.slow


@pytest.fixture
def workspace(tmp_path):
    """A folder with a model and data without content, for the agent makes its problem of its seed."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    (tmp_path / "data.jsonl").write_text('{"prompt": "?"}\n' * 64)
    return tmp_path


def train(workspace, output, *flags, fault=""):
    """Run ``rlhf train`` in a fork, and return how it ended."""
    words = ["train", *COMMON, "--output", output, *flags]
    return os.waitstatus_to_exitcode(run_in_a_fork(workspace, output, words, fault=fault))


def rewards(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"]["reward/mean"] for line in lines]


def test_a_killed_run_resumes_to_the_same_bits(workspace):
    small = (*ENDPOINT, "--steps", "4", "--checkpoint.every", "2")
    small += ("--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "4")

    assert train(workspace, "whole", *small) == 0, (workspace / "whole.log").read_text()
    for fault in ("generate:2", "train:3"):
        output = f"killed-{fault.replace(':', '-')}"
        killed = train(workspace, output, *small, fault=fault)
        assert killed == -signal.SIGKILL, (workspace / f"{output}.log").read_text()
        how = how_to_resume(workspace / output)
        assert train(workspace, output, *small, "--resume", how) == 0

        assert metrics_without_times(workspace / output) == metrics_without_times(
            workspace / "whole"
        )
        assert weights_digest(workspace / output) == weights_digest(workspace / "whole")


@pytest.mark.matrix
def test_an_agent_learns_what_multi_turn_learns_by_the_same_curve(workspace):
    """120 steps of 128 episodes. The mean reward over all steps is where a curve rises: between seeds it differs by
    less than 0.1."""
    steps = ("--steps", "120", "--rollout.batch_size", "16", "--rollout.n_samples_per_prompt", "8")

    assert train(workspace, "endpoint", *steps, *ENDPOINT) == 0
    others = ("--executor", "multi_turn", "--env", "echo_after_hint")
    assert train(workspace, "multi_turn", *steps, *others) == 0

    agent, environment = rewards(workspace / "endpoint"), rewards(workspace / "multi_turn")
    assert sum(agent[-10:]) / 10 >= 0.9
    assert sum(environment[-10:]) / 10 >= 0.9
    assert abs(sum(agent) - sum(environment)) / 120 < 0.15
