"""Staleness: version trained minus version of a token."""

import dataclasses

import numpy as np
import pytest

from rlhf_core.errors import RolloutError
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.reports import staleness_metrics
from rlhf_trainer.rollouts.settling import groups_by_version


@pytest.fixture
def batch(batch_of):
    """Prompt 3 has two episodes, prompt 5 one; versions 4 4 | 5 | 6 6 6."""
    made = batch_of({(3, 0): "pAA", (3, 1): "pA", (5, 0): "ppAAA"})
    return dataclasses.replace(
        made, oldest_version=np.array([4, 5, 6]), version_counts=np.array([[2], [1], [3]])
    )


def test_shares_mean_and_maximum_are_over_tokens(batch):
    values = {name: m.value() for name, m in staleness_metrics(batch, 6, 3).items()}

    # ages 2 2 1 0 0 0
    assert values == pytest.approx(
        {
            "rollout/staleness_mean": 5 / 6,
            "rollout/staleness_max": 2,
            "rollout/staleness_0": 3 / 6,
            "rollout/staleness_1": 1 / 6,
            "rollout/staleness_2": 2 / 6,
            "rollout/staleness_3": 0,
        }
    )


def test_a_token_beyond_the_bound_is_refused_by_name(batch):
    with pytest.raises(
        RolloutError,
        match=r"sample 0\.3\.0\.0 has a token of weights 2 versions",
        check=has_code("rollout/stale-weights"),
    ):
        staleness_metrics(batch, 6, 1)
    with pytest.raises(
        RolloutError,
        match=r"sample 0\.5\.0\.0 has .* 1 versions old, expected at",
        check=has_code("rollout/stale-weights"),
    ):
        staleness_metrics(batch.select(np.array([2])), 7, 0)


def test_on_policy_there_is_nothing_to_report(batch):
    assert staleness_metrics(batch.select(np.array([2])), 6, 0) == {}


def test_a_group_counts_as_old_as_its_oldest_token(batch):
    assert groups_by_version(batch) == {4: {(0, 3): 2}, 6: {(0, 5): 1}}


def test_the_bound_is_the_filters(batch):
    """``max_staleness`` as a filter drops a group exactly where the loop's own bound would be exceeded."""
    from rlhf_core.contracts import RolloutInfo
    from rlhf_core.plugins import load
    from rlhf_trainer.rollouts.source import STALE

    component = load("").get("rlhf_sample_filters", "drop_stale")
    info = RolloutInfo(step=1, version=6, max_new_tokens=4, max_length=8)
    for limit in range(4):
        kept = component.build(component.validate({"limit": limit})).keep(batch, info)
        try:
            staleness_metrics(batch, 6, limit)
        except RolloutError:
            assert kept == STALE
        else:
            assert kept is None
