"""Components that are called like functions: what takes other arguments, and what answers something else, is named."""

import ast
import functools

import pytest

from rlhf_core import ConfigError, PluginError
from rlhf_core.called.signatures import (
    CALLED_KINDS,
    answered,
    check_callable,
    check_definition,
)

LOSSES, CORRECTIONS = "rlhf_policy_losses", "rlhf_is_corrections"


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
    with pytest.raises(ConfigError) as caught:
        check_callable(thing, LOSSES, "keyword loss")

    assert str(caught.value) == (
        "keyword loss: expected what can be called with 1 argument, (inputs), by position; it takes "
        + taken
    )


@pytest.mark.parametrize("thing", [NeverCalled, NeverCalled()])
def test_objects_that_cannot_be_called_are_refused(thing):
    with pytest.raises(
        ConfigError, match="objects of NeverCalled cannot be called; expected __call__ with"
    ):
        check_callable(thing, LOSSES, "loss")


@pytest.mark.parametrize(
    ("source", "fits"),
    [
        ("def f(a, b, c): ...", True),
        ("def f(a, b, c, d=1, *, e=2): ...", True),
        ("def f(*columns): ...", True),
        ("def f(a, b, c, d): ...", False),
        ("def f(a, b): ...", False),
        ("def f(a, b, c, *, e): ...", False),
        ("@anything\ndef f(a): ...", True),  # the decorator may have changed it
        ("class F:\n    def __call__(self, a, b, c): ...", True),
        ("class F:\n    def __call__(self, a, b): ...", False),
        ("class F(Base): ...", True),  # the base's source may be elsewhere
        ("f = partial(g, 1)", True),
    ],
)
def test_a_definition_is_judged_by_its_source(source, fits):
    (node,) = ast.parse(source).body

    if fits:
        check_definition(node, CORRECTIONS, "mine.py:f")
        return
    with pytest.raises(ConfigError, match=r"^mine.py:f: expected .* 3 arguments, \(old_logprobs, "):
        check_definition(node, CORRECTIONS, "mine.py:f")


def test_an_answer_of_another_type_is_refused():
    assert answered(3.0, float, "the estimator") == 3.0
    with pytest.raises(PluginError, match=r"^the estimator returned 3 \(int\); expected str$"):
        answered(3, str, "the estimator")


def test_only_kinds_of_components_are_called():
    from rlhf_core.hookspecs import COMPONENT_HOOKS

    assert CALLED_KINDS.keys() <= COMPONENT_HOOKS.keys()
