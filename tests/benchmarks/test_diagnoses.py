"""The tables of docs/lab.md on ``rlhf doctor``, reduced: faults are found, and healthy runs are not blamed."""

import math

import pytest
from benchmarks.diagnoses import Bench

NAMED = (
    "advantages_flipped_with_tokens",
    "hackable_reward_held_out_right",
    "weights_not_delivered_at_a_low_rate",
)


@pytest.mark.slow
def test_planted_faults_are_found(tmp_path, capsys):
    Bench(tmp_path, math.inf).faults(NAMED, [1])

    said = capsys.readouterr().out
    for name in NAMED:
        assert f"| {name} | 1 | 1 | 0 | 0 |" in said, said


@pytest.mark.slow
def test_healthy_runs_are_not_blamed(tmp_path, capsys):
    Bench(tmp_path, math.inf).healthy(1, 3)

    said = capsys.readouterr().out
    assert "'runs': 3, 'runs blamed': 0" in said, said
