"""The first algorithms learn the quickstart's task from random weights, through the command that users type."""

import pytest
from tests.cases import one_in

from .conftest import require_learned

ESTIMATORS = ("reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo")


@pytest.mark.slow
@pytest.mark.parametrize("estimator", one_in(5, ESTIMATORS, first=1))
def test_the_estimator_learns_to_reverse_digits(learn, estimator):
    require_learned(estimator, learn("--estimator", estimator))
