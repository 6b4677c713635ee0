from functools import partial

import pytest

from rlhf_core import Component, FingerprintMismatch, Registered
from rlhf_core.fingerprint import LIBRARIES, fingerprint, require_equal
from rlhf_core.plugins import empty


def test_a_fingerprint_holds_components_and_libraries():
    plugins = empty()
    entry = Registered(Component(name="mine", factory="package.module:Mine"), "acme")
    plugins.registries["rlhf_engines"].add(entry)

    found = fingerprint(plugins)

    assert found["acme:mine"] == "acme -> package.module:Mine"
    assert found.keys() == {"acme:mine", *LIBRARIES}
    assert found["deepspeed"] == "not installed" or found["deepspeed"][0].isdigit()


class Made:
    """A component whose factory is the class itself."""


@pytest.mark.parametrize("factory", [Made, lambda config: Made(), partial(Made)])
def test_a_factory_that_is_no_text_is_named_without_its_address(factory):
    plugins = empty()
    plugins.registries["rlhf_engines"].add(
        Registered(Component(name="mine", factory=factory), "acme")
    )

    found = fingerprint(plugins)["acme:mine"]

    assert found.startswith(f"acme -> {getattr(factory, '__module__', 'functools')}:")
    assert f"{id(factory):x}" not in found
    assert " at 0x" not in found


def test_equal_fingerprints_are_accepted():
    require_equal({"a": "1"}, {"a": "1"}, "worker 3")


def test_every_difference_is_named_on_both_sides():
    mine = {"torch": "2.13", "acme:loss": "acme 1", "same": "x"}
    theirs = {"torch": "2.12", "other:loss": "other 1", "same": "x"}

    with pytest.raises(FingerprintMismatch) as caught:
        require_equal(mine, theirs, "worker 3")

    message = str(caught.value)
    assert "torch: here 2.13, worker 3 2.12" in message
    assert "acme:loss: here acme 1, worker 3 None" in message
    assert "other:loss: here None, worker 3 other 1" in message
    assert "same" not in message.partition("\n")[2]
