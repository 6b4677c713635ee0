"""What the contract of a logger promises, by the core's own checks, in files of the test's own."""

import pytest

from rlhf_core.plugins import load
from rlhf_testing.conformance import checks_of, subject


@pytest.mark.parametrize("check", checks_of("rlhf_loggers"), ids=lambda check: check.name)
def test_contract(place, check):
    registered = load("").get("rlhf_loggers", place.name)

    check(subject(registered, **place.options))
