"""What every correction promises."""

from rlhf_plugin_algorithms import rlhf_is_corrections
from rlhf_testing.conformance import parametrize_checks


@parametrize_checks(
    "rlhf_is_corrections", {component.name: component for component in rlhf_is_corrections()}
)
def test_contract(check, subject):
    check(subject)
