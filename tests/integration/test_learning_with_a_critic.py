"""The same with a critic, which learns values meanwhile. A file of its own: it takes as long as the others together."""

import pytest

from .conftest import require_learned


@pytest.mark.slow
@pytest.mark.matrix
def test_gae_learns_to_reverse_digits(learn):
    require_learned("gae", learn("--estimator", "gae"))


@pytest.mark.slow
@pytest.mark.learning
def test_the_critic_of_gae_learns_values(learn):
    """It starts at 0 everywhere; then its mean follows that of the returns, and it tells good states from bad ones."""
    lines = learn("--estimator", "gae", "--steps", "220")

    steps = [line["metrics"] for line in lines if "metrics" in line]
    assert steps[0]["critic/value_mean"] == 0.0
    late = steps[-70:]
    explained = sum(step["critic/explained_variance"] for step in late) / len(late)
    gap = sum(step["critic/value_mean"] - step["critic/return_mean"] for step in late) / len(late)
    returns = sum(step["critic/return_mean"] for step in late) / len(late)
    print(f"explained variance {explained:.3f}, mean value off by {gap:+.2f} of {returns:.2f}")
    assert explained > 0.08
    assert abs(gap) < 0.1 * returns
