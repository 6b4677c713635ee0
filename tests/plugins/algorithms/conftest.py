"""Fixtures that tests of several rooms of algorithms share."""

from tests.plugins.algorithms.off_policy_cases import (  # noqa: F401
    correct,
    drawn,
    effect,
    measured,
    one_token,
    step,
)
from tests.plugins.algorithms.trajectory_rows import _row, columns, info  # noqa: F401
