"""Objects of a Python program for kinds that are called: what takes other arguments is refused with both signatures."""

import functools

import pytest

from rlhf.given_objects import check_callable
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

LOSSES = "rlhf_policy_losses"


class Called:
    def __call__(self, inputs, *, scale=1.0): ...


class Derived(Called):
    """Called as its base is."""


class CalledWithTwo:
    def __call__(self, inputs, weights): ...


class NeverCalled:
    def loss(self, inputs): ...


@pytest.mark.parametrize(
    "thing",
    [
        lambda inputs: None,
        lambda anything, more=None: None,
        lambda *all: None,
        functools.partial(lambda weight, inputs: None, 0.5),
        Called,
        Called(),
        Derived,
        max,  # has no signature that can be read
    ],
)
def test_what_can_be_called_with_the_arguments_of_its_kind_passes(thing):
    check_callable(thing, LOSSES, "loss")


@pytest.mark.parametrize(
    ("thing", "taken"),
    [
        (lambda: None, "()"),
        (lambda inputs, weights: None, "(inputs, weights)"),
        (lambda *, inputs: None, "(inputs)"),
        (CalledWithTwo, "(inputs, weights)"),
        (CalledWithTwo(), "(inputs, weights)"),
    ],
)
def test_what_takes_something_else_is_refused_with_both_signatures(thing, taken):
    with pytest.raises(ConfigError, check=has_code("config/not-callable")) as caught:
        check_callable(thing, LOSSES, "keyword loss")

    assert str(caught.value) == (
        "keyword loss: expected what can be called with 1 argument, (inputs), by position; it takes "
        + taken
    )


@pytest.mark.parametrize("thing", [NeverCalled, NeverCalled()])
def test_objects_that_cannot_be_called_are_refused(thing):
    with pytest.raises(
        ConfigError,
        match="objects of NeverCalled cannot be called; expected __call__ with",
        check=has_code("config/object-not-callable"),
    ):
        check_callable(thing, LOSSES, "loss")
