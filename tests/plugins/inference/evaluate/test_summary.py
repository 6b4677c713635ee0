"""The numbers of an evaluation: by hand, against slow loops, and at their limits."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rlhf_plugin_inference.evaluate.records import EpisodeRecord
from rlhf_plugin_inference.evaluate.summary import Evaluation, ks_up_to
from rlhf_plugin_inference.evaluate.table import summary_table, task_table


def episode(task, sample, reward, *, temperature=1.0, tokens=4, **values):
    given = {"rewards": {}, "metrics": {}, "end": "finished", "turns": 1} | values
    return EpisodeRecord(
        set="s",
        temperature=temperature,
        uid=f"-1.{task}.{sample}.0",
        task=f"t{task}",
        digest="d",
        prompt="p",
        messages=None,
        response="r",
        segments=None,
        reward=reward,
        tokens_in=10,
        tokens_out=tokens,
        truncated=False,
        **given,
    )


def only_summary(episodes, threshold=1.0):
    (summary,) = Evaluation(episodes, threshold=threshold).summaries(0.95)
    return summary


def test_a_summary_by_hand():
    # task 0: one of two passes; task 1: none. Means 0.5 and 0.25, so the reward is 0.375 and its error
    # sqrt(2 / 1 * (0.25^2 + 0.25^2)) / 4 = 0.125, where the sums of a task around the mean are 0.25 and -0.25.
    # pass@1 = (1/2 + 0) / 2; pass@2 = (1 + 0) / 2.
    rows = [(0, 0, 1.0, 2), (0, 1, 0.0, 4), (1, 0, 0.5, 3), (1, 1, 0.0, 3)]

    summary = only_summary([episode(*row[:3], tokens=row[3]) for row in rows])

    assert summary.reward is not None
    assert summary.reward.value == 0.375
    assert summary.reward.standard_error == pytest.approx(0.125)
    assert {k: rate.value for k, rate in summary.pass_at.items()} == {1: 0.25, 2: 0.5}
    assert (summary.tasks, summary.episodes, summary.unscored) == (2, 4, 0)
    assert (summary.tokens_in, summary.tokens_out) == (40, 12)


def test_pass_at_k_equals_a_slow_loop_over_all_choices():
    draw = random.Random(3)
    passed = [[draw.random() < 0.4 for _ in range(6)] for _ in range(5)]
    rows = [
        episode(task, sample, float(one))
        for task, group in enumerate(passed)
        for sample, one in enumerate(group)
    ]

    summary = only_summary(rows)

    assert list(summary.pass_at) == [1, 2, 4, 6]
    for k, rate in summary.pass_at.items():
        chances = [
            np.mean([any(choice) for choice in itertools.combinations(group, k)])
            for group in passed
        ]
        assert rate.value == pytest.approx(float(np.mean(chances)))


def test_the_order_of_episodes_changes_nothing_but_rounding():
    draw = random.Random(1)
    rows = [episode(task, sample, draw.random()) for task in range(4) for sample in range(3)]
    mixed = draw.sample(rows, len(rows))

    one, other = only_summary(rows, 0.5), only_summary(mixed, 0.5)

    assert one.reward is not None
    assert other.reward is not None
    assert one.reward.value == pytest.approx(other.reward.value)
    assert {k: r.value for k, r in one.pass_at.items()} == pytest.approx(
        {k: r.value for k, r in other.pass_at.items()}
    )


def test_an_episode_passes_at_the_threshold_as_it_is_in_float32():
    reward = float(np.float32(0.1))

    assert only_summary([episode(0, 0, reward)], threshold=0.1).pass_at[1].value == 1.0


def test_episodes_without_a_reward_count_for_tokens_and_ends_alone():
    rows = [episode(0, 0, 1.0), episode(0, 1, None), episode(1, 0, None, end="environment_error")]

    summary = only_summary(rows)

    assert summary.reward is not None
    assert (summary.reward.value, summary.reward.tasks) == (1.0, 1)
    assert list(summary.pass_at) == [1]
    assert summary.unscored == 2
    assert summary.ends == {"environment_error": 1, "finished": 2}
    assert summary.tokens_out == 12


def test_a_task_that_lost_an_episode_takes_no_pass_at_k_away_from_the_others():
    rows = [episode(0, sample, float(sample == 0)) for sample in range(4)]
    rows += [episode(1, sample, float(sample < 2)) for sample in range(3)] + [episode(1, 3, None)]
    rows += [episode(2, sample, 0.0) for sample in range(4)]

    summary = only_summary(rows)

    # pass@1: (1/4 + 2/3 + 0) / 3; pass@2: (1/2 + 1 + 0) / 3; pass@4 of tasks 0 and 2: (1 + 0) / 2
    found = {k: (rate.value, rate.tasks) for k, rate in summary.pass_at.items()}
    assert found == {1: (pytest.approx(11 / 36), 3), 2: (0.5, 3), 4: (0.5, 2)}
    assert summary.unscored == 1


def test_nothing_scored_gives_no_rates():
    summary = only_summary([episode(0, 0, None)])

    assert summary.reward is None
    assert summary.pass_at == {}


def test_metrics_are_means_over_the_episodes_that_have_them():
    rows = [
        episode(0, 0, 1.0, metrics={"a": 1.0}),
        episode(0, 1, 1.0, metrics={"a": 2.0, "b": 5.0}),
    ]

    assert only_summary(rows).metrics == {"a": 1.5, "b": 5.0}


def test_each_temperature_is_summed_up_alone():
    rows = [episode(0, 0, 1.0, temperature=0.0), episode(0, 0, 0.0, temperature=1.0)]

    found = Evaluation(rows, threshold=1.0).summaries(0.95)

    assert [(one.temperature, one.reward.value) for one in found if one.reward] == [(0, 1), (1, 0)]


def test_tallies_of_tasks_by_hand():
    rows = [episode(0, 0, 1.0, tokens=2), episode(0, 1, 0.5, tokens=4), episode(1, 0, None)]

    first, second = Evaluation(rows, threshold=1.0).tasks()

    assert (first.task, first.passed, first.episodes, first.reward, first.tokens_out) == (
        "t0",
        1,
        2,
        0.75,
        3.0,
    )
    assert (second.task, second.episodes, second.reward) == ("t1", 0, None)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_ks_are_powers_of_two_and_the_number_itself(count, expected):
    assert ks_up_to(count) == expected


def simulated(generator, tasks, episodes):
    """Episodes of tasks whose chances to pass are drawn from Beta(1, 1): pass@2 is 1 - E[(1 - p)^2] = 2/3."""
    chances = generator.beta(1.0, 1.0, size=tasks)
    wins = generator.random((tasks, episodes)) < chances[:, None]
    return [
        episode(task, sample, float(wins[task, sample]))
        for task in range(tasks)
        for sample in range(episodes)
    ]


@pytest.mark.parametrize(("tasks", "episodes"), [(40, 4), (15, 8)])
def test_intervals_of_pass_at_k_hold_the_truth_about_95_times_in_100(tasks, episodes):
    generator = np.random.Generator(np.random.Philox(11))
    truth = {1: 1 / 2, 2: 2 / 3, 4: 4 / 5}  # 1 - 1 / (k + 1)
    hits = dict.fromkeys(truth, 0)
    for _ in range(200):
        found = only_summary(simulated(generator, tasks, episodes)).pass_at
        for k, value in truth.items():
            hits[k] += found[k].low <= value <= found[k].high

    # 200 draws of a chance of 0.95 have a standard deviation of 1.5 %; 3.5 of them below.
    assert all(count >= 0.90 * 200 for count in hits.values()), hits


def test_the_table_has_a_row_for_each_set_and_what_only_some_have():
    # One of two passes; at temperature 0 there is a task without a reward, and a metric that is called as a column is.
    rows = [episode(0, 0, 1.0), episode(0, 1, 0.0)]
    rows.append(episode(0, 0, None, temperature=0.0, metrics={"tasks": 3.0, "legal": 0.5}))

    first, second = summary_table(Evaluation(rows, threshold=1.0).summaries(0.95)).objects()

    assert list(first)[:7] == [
        "set",
        "temperature",
        "tasks",
        "episodes",
        "reward",
        "reward_low",
        "reward_high",
    ]
    assert (first["temperature"], first["tasks"], first["reward"], first["pass@2"]) == (
        1.0,
        1,
        0.5,
        1.0,
    )
    assert (first["legal"], first["metric tasks"], first["ended by finished"]) == (None, None, 2)
    assert (second["tasks"], second["metric tasks"], second["legal"]) == (1, 3.0, 0.5)
    assert (second["reward"], second["pass@1"], second["without a reward"]) == (None, None, 1)


def test_the_table_of_tasks_has_passed_and_all():
    (row,) = task_table(
        Evaluation([episode(0, 0, 1.0), episode(0, 1, 0.0)], threshold=1.0).tasks()
    ).objects()

    assert row == {
        "set": "s",
        "temperature": 1.0,
        "task": "t0",
        "passed": 1,
        "passed_of": 2,
        "reward": 0.5,
        "tokens": 4.0,
    }
