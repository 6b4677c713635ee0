"""The coefficient of a targeted entropy bonus."""

import pytest

from rlhf_core.math import adapted_entropy_coef


@pytest.mark.parametrize(
    ("entropy", "expected"),
    [
        (0.1, 0.015),  # below 0.2: 0.01 + 0.005
        (0.2, 0.005),  # at the target: 0.01 - 0.005
        (0.3, 0.005),
    ],
)
def test_the_coefficient_rises_below_the_target_and_falls_otherwise(entropy, expected):
    assert adapted_entropy_coef(0.01, entropy, target=0.2, step=0.005) == pytest.approx(expected)


def test_it_never_falls_below_zero():
    """A negative coefficient would reward a policy for being sure."""
    assert adapted_entropy_coef(0.003, 1.0, target=0.2, step=0.005) == 0.0
    assert adapted_entropy_coef(0.0, 1.0, target=0.2, step=0.005) == 0.0


def test_it_grows_without_bound_while_the_entropy_stays_low():
    """The integral of the error's sign: a coefficient that is too small for the task is found in the end."""
    coef = 0.0
    for _ in range(100):
        coef = adapted_entropy_coef(coef, 0.05, target=0.2, step=0.005)

    assert coef == pytest.approx(0.5)


def test_a_policy_that_answers_to_the_bonus_settles_at_the_target():
    """Entropy that is ten times the coefficient ends within one step's worth of the target, 0.05."""
    coef = 0.0
    for _ in range(200):
        coef = adapted_entropy_coef(coef, 10 * coef, target=0.2, step=0.005)

    assert abs(10 * coef - 0.2) <= 0.05 + 1e-9
