"""pass@k and the summary of an evaluation."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from rlhf_config.checks.eval_names import metric_names
from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_trainer.loop.evaluation import pass_at_k, summarize


def trajectory(prompt, sample, reward, length=1, segment=0):
    return Trajectory(
        uid=Uid(-1, prompt, sample, segment),
        token_ids=np.zeros(1 + length, np.int32),
        action_mask=np.array([False] + [True] * length),
        rollout_logprobs=np.zeros(length, np.float32),
        weight_version=np.zeros(length, np.int32),
        turns=(Turn(start=1, end=1 + length),),
        reward=reward,
    )


def batches(rows):
    """One for each prompt, as groups come."""
    return [
        TrajectoryColumns.from_trajectories([row for row in rows if row.uid.prompt == prompt])
        for prompt in sorted({row.uid.prompt for row in rows})
    ]


def test_pass_at_k_by_hand():
    # n = 4, c = 1: pass@1 = 1/4; pass@2 = 1 - C(3,2)/C(4,2) = 1 - 3/6; pass@4 = 1
    actual = [pass_at_k(np.array([1]), np.array([4]), k)[0] for k in (1, 2, 4)]

    assert actual == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (6, 0, 2), (4, 4, 1), (7, 3, 5)])
def test_pass_at_k_equals_counting_all_choices(n, c, k):
    samples = [True] * c + [False] * (n - c)
    choices = list(itertools.combinations(samples, k))
    expected = sum(map(any, choices)) / len(choices)

    assert pass_at_k(np.array([c]), np.array([n]), k)[0] == pytest.approx(expected, abs=1e-12)


def test_summary_by_hand():
    # prompt 0: one of two passes; prompt 1: none
    rows = [
        trajectory(0, 0, 1.0, 2),
        trajectory(0, 1, 0.0, 4),
        trajectory(1, 0, 0.5, 3),
        trajectory(1, 1, 0.0, 3),
    ]

    assert summarize(batches(rows), pass_threshold=1.0) == {
        "reward": 0.375,
        "response_length": 3.0,
        "truncated": 0.0,
        "pass@1": 0.25,
        "pass@2": 0.5,
    }


def test_named_rewards_and_metrics_are_means_over_the_episodes_that_have_them():
    rows = [
        replace(trajectory(0, 0, 1.0), rewards={"exact": 1.0}, metrics={"exact/length": 4.0}),
        replace(trajectory(0, 1, 0.0), rewards={"exact": 0.0}, metrics={"moves": 3.0}),
        replace(trajectory(1, 0, 0.5), rewards={"exact": 0.5}, metrics={"moves": 6.0}),
    ]

    summary = summarize(batches(rows), pass_threshold=1.0)

    assert summary["reward/exact"] == pytest.approx(0.5)
    assert (summary["rollout/exact/length"], summary["rollout/moves"]) == (4.0, 4.5)


def test_segments_count_once_and_a_threshold_that_is_no_binary_fraction_is_met():
    rows = [
        trajectory(0, 0, 0.1, segment=0),
        trajectory(0, 0, 0.7, segment=1),
        trajectory(0, 1, 0.6),
    ]

    summary = summarize(batches(rows), pass_threshold=0.7)

    assert summary["pass@1"] == 0.5
    assert summary["reward"] == pytest.approx(0.65)
    assert summarize([], 0.7) == {}


def test_a_prompt_that_lost_a_sample_takes_no_pass_at_k_away_from_the_others():
    """Prompt 0 has 4 samples, of which 1 passes; prompt 1 has 3, of which 2 pass."""
    rows = [trajectory(0, sample, float(sample == 0)) for sample in range(4)]
    rows += [trajectory(1, sample, float(sample < 2)) for sample in range(3)]

    summary = summarize(batches(rows), pass_threshold=1.0)

    # pass@1: (1/4 + 2/3) / 2; pass@2: (1 - 3/6 + 1 - 0/3) / 2; pass@4 of prompt 0 alone: 1
    assert summary["pass@1"] == pytest.approx((1 / 4 + 2 / 3) / 2)
    assert summary["pass@2"] == pytest.approx(0.75)
    assert summary["pass@4"] == 1.0


@pytest.mark.parametrize("num_samples", [1, 2, 3, 4, 7, 8])
def test_the_names_are_those_of_a_summary(num_samples):
    rows = [trajectory(0, sample, 1.0) for sample in range(num_samples)]

    names = metric_names(["rows"], [0.5], num_samples, draws=False)

    assert names == [f"eval/rows/T0.5/{name}" for name in summarize(batches(rows), 1.0)]


def test_greedy_samples_of_a_prompt_are_one_unless_an_environment_draws():
    greedy, sampled = "eval/rows/T0/pass@4", "eval/rows/T1/pass@4"

    still = metric_names(["rows"], [0.0, 1.0], 4, draws=False)
    drawn = metric_names(["rows"], [0.0, 1.0], 4, draws=True)

    assert (greedy in still, sampled in still) == (False, True)
    assert (greedy in drawn, sampled in drawn) == (True, True)
