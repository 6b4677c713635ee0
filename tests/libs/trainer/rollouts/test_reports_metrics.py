"""What is logged of a batch, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from tests.core.conftest import trajectory

from rlhf_core.batch.metric import metric_values
from rlhf_core.contracts import TrajectoryColumns, Uid
from rlhf_trainer.rollouts.reports import batch_metrics


def rows(*texts, **fields):
    made = [trajectory(Uid(0, 0, index), text) for index, text in enumerate(texts)]
    columns = {name: list(values) for name, values in fields.items()}
    changed = [
        replace(row, **{name: values[index] for name, values in columns.items()})
        for index, row in enumerate(made)
    ]
    return TrajectoryColumns.from_trajectories(changed)


def test_means_are_over_samples_and_totals_are_totals():
    batch = rows("pAA", "ppAAAA!", "pAAA", reward=[1.0, 0.0, 0.5])

    assert metric_values(batch_metrics(batch)) == pytest.approx(
        {
            "reward/mean": 0.5,
            "reward/std": (0.5 / 3) ** 0.5,  # of the population: (0.25 + 0.25 + 0) / 3
            "response/length_mean": 3.0,
            "response/length_max": 4.0,
            "response/truncated": 1 / 3,
            "rollout/tokens": 3 + 6 + 4,
            "rollout/samples": 3.0,
        }
    )


def test_an_episode_of_several_rows_is_one_sample():
    """Rows of the first episode: 2 and 4 actions, one cut off, reward 1; the second episode: 3 actions, reward 0."""
    made = [
        replace(trajectory(uid, text), reward=reward, metrics={"turns": turns})
        for uid, text, reward, turns in (
            (Uid(0, 0, 0, 0), "pAA", 1.0, 2.0),
            (Uid(0, 0, 0, 1), "ppAAAA!", 1.0, 2.0),
            (Uid(0, 0, 1, 0), "pAAA", 0.0, 1.0),
        )
    ]

    assert metric_values(batch_metrics(TrajectoryColumns.from_trajectories(made))) == pytest.approx(
        {
            "reward/mean": 0.5,
            "reward/std": 0.5,
            "response/length_mean": 4.5,
            "response/length_max": 6.0,
            "response/truncated": 0.5,
            "rollout/tokens": 3 + 6 + 4,
            "rollout/samples": 2.0,
            "rollout/rows": 3.0,
            "rollout/turns": 1.5,
        }
    )


def test_what_only_some_samples_report_is_averaged_over_those():
    batch = rows(
        *("pA", "pA", "pA"),
        rewards=[{"exact": 1.0}, {"exact": 0.0, "style": 4.0}, {"exact": 0.5}],
        metrics=[{}, {"turns": 2.0}, {"turns": 3.0}],
    )

    values = metric_values(batch_metrics(batch))

    assert values["reward/exact"] == 0.5
    assert values["reward/style"] == 4.0
    assert values["rollout/turns"] == 2.5


def test_one_sample_has_no_spread():
    values = metric_values(batch_metrics(rows("pA", reward=[3.0])))

    assert (values["reward/mean"], values["reward/std"]) == (3.0, 0.0)


def test_sums_are_exact_where_float32_would_not_be():
    """2**24 + 1 is no float32: a sum in float32 would stay at 2**24."""
    batch = rows(*["pA"] * 3, reward=[float(2**24), 1.0, 1.0])

    assert metric_values(batch_metrics(batch))["reward/mean"] == (2**24 + 2) / 3
    assert np.float32(2**24) + np.float32(1) == 2**24
