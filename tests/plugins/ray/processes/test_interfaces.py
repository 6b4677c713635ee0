"""The interface that an address belongs to."""

import pytest

from rlhf_plugin_ray.processes.interfaces import interface_with


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_all_of_the_loopback_is_one_interface(address):
    assert interface_with(address) == "lo"


@pytest.mark.parametrize("address", ["203.0.113.7", "::1", "not an address"])
def test_what_is_not_here_or_cannot_be_told_has_none(address):
    assert interface_with(address) is None
