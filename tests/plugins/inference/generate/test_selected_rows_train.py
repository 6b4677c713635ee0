"""Rows that are chosen here are read by ``rlhf sft`` and ``rlhf dpo`` as they are, and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.forked_runs import QUIET

from rlhf_cli.main import main

MANY = [
    "--rollout.n_samples_per_prompt",
    "8",
    "--reward",
    "rewards.py:length",
    "--select.truncated",
]


def trained(command, data, *words):
    common = ["--model", "model", "--data", data, "--output", "trained", "--steps", "2", *QUIET]
    assert main([command, *common, "--train.batch_size", "4", *words]) == 0
    lines = map(json.loads, Path("trained/metrics.jsonl").read_text().splitlines())
    return [line["metrics"] for line in lines if "metrics" in line]


@pytest.mark.parametrize("data", ["prompts.jsonl", "chats.jsonl"])
def test_rejection_sampled_rows_are_imitated(generate, data):
    words = ["--select.mode", "rejection", "--select.threshold", "0.4"]

    rows = generate(*MANY, *words, data=data, name="rejection")

    assert all(row["reward"] == len(row["response"]) / 10 >= 0.4 for row in rows)
    steps = trained("sft", "out/rejection.jsonl")
    assert len(steps) == 2
    assert all(step["sft/nll"] > 0 for step in steps)


@pytest.mark.parametrize("data", ["prompts.jsonl", "chats.jsonl"])
def test_pairs_are_preferred_and_those_without_a_difference_are_left_out(generate, data, capsys):
    rows = generate(*MANY, "--select.mode", "pairs", data=data, name="pairs")

    assert all(len(row["chosen"]) > len(row["rejected"]) for row in rows)
    assert "rows chosen" in capsys.readouterr().out
    steps = trained("dpo", "out/pairs.jsonl")
    assert len(steps) == 2
    assert steps[0]["loss/preference"] == pytest.approx(0.6931, abs=1e-3), "log 2 before any update"


def test_prompts_whose_completions_earn_the_same_are_counted(generate, capsys):
    words = ["--reward", "rewards.py:same", "--rollout.n_samples_per_prompt", "8"]

    rows = generate(*words, "--select.mode", "pairs", "--select.truncated", name="pairs")

    assert rows == []
    out = capsys.readouterr().out
    assert "prompts left out: equal rewards  9" in out
    assert "rows chosen" in out
