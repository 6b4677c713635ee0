"""Shares of sets that cannot be mixed."""

import pytest

from rlhf_config.checks.mixes import mix_problems
from rlhf_config.layers import Layer
from rlhf_config.problems import Labels


@pytest.mark.parametrize(
    ("shares", "said", "code"),
    [
        ((0.5,), "1 shares for 2 sets", "config/number-of-shares"),
        ((0.5, 0.6), "add up to 1, got 1.1", "config/sum-of-shares"),
    ],
)
def test_shares_that_are_none_are_refused(shares, said, code):
    labels = Labels(Layer({}, {}))

    problem = next(mix_problems(shares, ["a", "b"], labels))

    assert said in str(problem)
    assert problem.code == code
    assert list(mix_problems((0.25, 0.75), ["a", "b"], labels)) == []
