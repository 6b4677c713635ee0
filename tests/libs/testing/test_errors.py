"""Errors expected by their codes."""

import pytest

from rlhf_core.errors import ConfigError, DataError
from rlhf_testing.errors import has_code


def test_an_error_of_the_code_is_expected():
    with pytest.raises(DataError, check=has_code("data/no-rows")):
        raise DataError("why", code="data/no-rows")


@pytest.mark.parametrize("error", [DataError("why"), ConfigError("why"), ValueError("why")])
def test_another_error_is_not(error):
    assert not has_code("data/no-rows")(error)
