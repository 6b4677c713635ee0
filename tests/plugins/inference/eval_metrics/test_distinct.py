"""Shares of different n-grams by hand."""

import numpy as np
import pytest

from rlhf_core.contracts import EvalEpisodes
from rlhf_plugin_inference.eval_metrics.distinct import Distinct, DistinctConfig, distinct_share


@pytest.mark.parametrize(
    ("texts", "n", "expected"),
    [
        (["a b a"], 1, 2 / 3),
        (["a b a b"], 2, 2 / 3),  # ab, ba, ab
        (["a b", "a b"], 2, 1 / 2),
        (["a b", "c"], 2, 1.0),
        (["a", "b"], 2, None),  # no n-gram reaches from one text into the next
    ],
)
def test_a_share_by_hand(texts, n, expected):
    assert distinct_share(texts, n) == expected


def test_prompts_without_an_n_gram_are_left_out_of_the_mean():
    episodes = EvalEpisodes(
        set_name="sums",
        temperature=1.0,
        prompt=np.array([0, 0, 1]),
        reward=np.zeros(3),
        passed=np.zeros(3, bool),
        num_actions=np.ones(3, np.int64),
        responses=("a b", "a b", "a"),
    )

    assert Distinct(DistinctConfig(n=2))(episodes) == {"distinct_2": 0.5}
    assert Distinct(DistinctConfig(n=3))(episodes) == {}
