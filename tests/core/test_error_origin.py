"""An exception of a component's code names the component."""

import types

import pytest

from rlhf_core import Component, ConfigError, Registered
from rlhf_core.error_origin import name_component

INNER = "def divide(config=None):\n    return 1 / 0\n"
OUTER = "def call(function):\n    return function()\n"


def module_of(name, source):
    """Return a module that does not have to be imported: its functions know its name."""
    module = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


@pytest.fixture
def inner():
    return module_of("acme.inner", INNER)


@pytest.fixture
def outer():
    return module_of("acme.outer", OUTER)


def registered(name, factory):
    return Registered(Component(name=name, factory=factory), "acme")


def error_of(call, *arguments):
    with pytest.raises((ArithmeticError, ConfigError)) as caught:
        call(*arguments)
    return caught.value


def test_the_component_whose_module_raised_is_named(inner):
    error = error_of(inner.divide)

    note = name_component(
        error, [registered("other", "acme.other:f"), registered("it", "acme.inner:f")]
    )

    assert note == "in plugin acme (acme), component it"
    assert error.__notes__ == [note]


def test_of_a_component_that_calls_another_the_inner_one_is_named(inner, outer):
    error = error_of(outer.call, inner.divide)

    note = name_component(
        error, [registered("executor", "acme.outer:f"), registered("environment", "acme.inner:f")]
    )

    assert note.endswith("component environment")


def test_a_component_is_named_for_what_it_calls_elsewhere(inner, outer):
    error = error_of(outer.call, inner.divide)

    assert name_component(error, [registered("executor", "acme.outer:f")]).endswith("executor")


def test_a_factory_that_is_no_text_has_its_module(inner):
    error = error_of(inner.divide)

    assert name_component(error, [registered("it", inner.divide)]).endswith("component it")


def test_an_exception_of_no_component_stays_as_it_is(inner):
    error = error_of(inner.divide)

    assert name_component(error, [registered("other", "acme.other:f")]) == ""
    assert not hasattr(error, "__notes__")


def test_what_was_noted_when_the_component_was_built_is_not_noted_twice():
    entry = registered("it", module_of("acme.inner", INNER).divide)
    error = error_of(entry.build)

    note = name_component(error, [entry])

    assert error.__notes__ == [note] == ["in plugin acme (acme), component it"]


def test_where_a_module_has_several_components_their_plugin_is_named(inner):
    error = error_of(inner.divide)
    entries = [registered("one", "acme.inner:f"), registered("other", "acme.inner:g")]

    assert name_component(error, entries) == "in plugin acme (acme)"


def test_an_interrupt_is_nobodys_mistake(outer):
    def press():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        outer.call(press)

    assert name_component(caught.value, [registered("it", "acme.outer:f")]) == ""


def test_messages_of_this_project_name_their_component_themselves(outer):
    def refuse():
        raise ConfigError("no")

    assert name_component(error_of(outer.call, refuse), [registered("it", "acme.outer:f")]) == ""
