"""The benchmark of ragged steps draws the lengths that it promises, and reads records as they end."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks import ragged_steps


@pytest.fixture(autouse=True)
def _lengths(monkeypatch):
    monkeypatch.setenv(ragged_steps.MEAN, "200")
    monkeypatch.setenv(ragged_steps.SPREAD, "0.5")


def test_lengths_are_log_normal_with_the_mean_that_is_asked_for():
    tasks = [SimpleNamespace(prompt_ids=(number, 7)) for number in range(100)]
    lengths = [ragged_steps.length(task, seed) for task in tasks for seed in range(20)]

    assert np.mean(lengths) == pytest.approx(200, rel=0.1)
    assert np.std(np.log(lengths)) == pytest.approx(0.5, rel=0.1)


def test_a_prompt_keeps_its_part_of_a_length_in_every_epoch():
    """Half of the variance: the samples of a prompt are alike, and none is another's."""
    short, long = (SimpleNamespace(prompt_ids=ids) for ids in ((1, 7), (2, 7)))
    first = [ragged_steps.length(short, seed) for seed in range(200)]

    assert first == [ragged_steps.length(short, seed) for seed in range(200)]
    assert np.std(np.log(first)) == pytest.approx(0.5 / 2**0.5, rel=0.15)
    assert np.mean(first) != pytest.approx(
        np.mean([ragged_steps.length(long, seed) for seed in range(200)]), rel=0.05
    )


def test_a_step_is_shown_once_and_half_a_line_later(tmp_path, capsys):
    record = {
        "timing": {"step_s": 1.5, "train_s": 0.5},
        "metrics": {"rollout/tokens": 100.0, "response/length_max": 9.0},
    }
    line, rows = json.dumps(record), []
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(f"{line}\n{line[:20]}")

    ragged_steps.show(tmp_path, rows)
    ragged_steps.show(tmp_path, rows)
    assert [row["step_s"] for row in rows] == [1.5]
    metrics.write_text(f"{line}\n{line}\n")
    ragged_steps.show(tmp_path, rows)

    assert len(rows) == 2
    assert capsys.readouterr().out.count("step ") == 2
