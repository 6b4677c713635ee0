"""The first algorithms learn the quickstart's task from random weights, through the command that users type."""

import pytest

from .conftest import require_learned

ESTIMATORS = [
    pytest.param("reinforce_baseline", marks=pytest.mark.learning),
    *(
        pytest.param(name, marks=pytest.mark.matrix)
        for name in ("reinforce", "rloo", "group_norm", "dr_grpo")
    ),
]
"""CI runs the same run ahead of its samples (``test_async``), and from wheels (``tests/release``)."""


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_estimator_learns_to_reverse_digits(learn, estimator):
    require_learned(estimator, learn("--estimator", estimator))
