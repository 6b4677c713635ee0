"""Components that a Python program gives as objects: functions, classes and instances where a file has names.

Such an object gets a name, ``python:NAME``, in the plugins of one run, and is then chosen like any other component. It
exists in the process that gave it alone: nothing is pickled, so a runtime with processes of its own refuses it
(``capabilities.IN_PROCESS``), and so do worker processes of rewards and environments.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, create_model

from rlhf_core.called import CALLED_KINDS, refused
from rlhf_core.capabilities import IN_PROCESS, WRAPS_CODE, check_words
from rlhf_core.code_reference import config_of, made, snake_case
from rlhf_core.component import Component, Config, Registered
from rlhf_core.errors import ConfigError
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import GIVEN, Plugins

MADE_PER_EPISODE = frozenset({"rlhf_environments"})
"""Hooks whose components are made anew again and again, so that one instance cannot stand for them."""


def give(plugins: Plugins, hook: str, thing: Any, label: str) -> str:
    """Register an object as a component of one kind, and return the qualified name by which it can be chosen.

    The plugin record gets the digest of its source in the place of a version. Values that a function closes over, and
    the attributes of an instance, are not part of it.

    Args:
        thing: a ``Component``; a class, made with its config or without arguments; a function, for the kinds that are
            called and for those of which a component wraps code; or an instance.
        label: option that the object is the value of, for messages.

    Raises:
        ConfigError: such an object cannot be a component of this kind.
    """
    component = _component(plugins, hook, thing, label)
    taken = {entry.name for entry in plugins.registries[hook] if entry.plugin == GIVEN}
    component = replace(component, name=_free(component.name, taken), aliases=())
    check_words(component)
    registered = Registered(component, GIVEN)
    plugins.registries[hook].add(registered)
    plugins.loaded[registered.qualified] = source_digest(thing)
    return registered.qualified


def name_of(thing: Any) -> str:
    """Return the name of a function, class or component, or of an instance's class, in snake case; ``given`` for a
    lambda."""
    if isinstance(thing, Component):
        return thing.name
    named = _definition(thing)
    name = snake_case(str(getattr(named, "__name__", type(named).__name__)))
    return name if name.isidentifier() and name[0].isalpha() else "given"


def source_digest(thing: Any) -> str:
    """Return the digest of the source of a function or class, as a run records it in the place of a version."""
    if isinstance(thing, Component):
        thing = thing.factory
    try:
        source = inspect.getsource(_definition(thing))
    except (OSError, TypeError):
        return "given without source code"
    return f"source, sha256 {hashlib.sha256(source.encode()).hexdigest()}"


def check_callable(thing: Any, hook: str, label: str) -> None:
    """Refuse a function, an object, or a class by its objects, that cannot be called as its kind is.

    Raises:
        ConfigError: it cannot be called, or takes other arguments. What has no signature that can be read is let
            through.
    """
    arguments = CALLED_KINDS[hook]
    called = _call_of(thing) if isinstance(thing, type) else thing
    if not callable(called):
        name = thing.__name__ if isinstance(thing, type) else type(thing).__name__
        raise ConfigError(
            f"{label}: objects of {name} cannot be called; expected __call__ with ({', '.join(arguments)})",
            code="config/object-not-callable",
        )
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise refused(label, arguments, list(signature.parameters)) from None


def _call_of(made: type) -> Callable[..., Any] | None:
    """Return ``__call__`` of a class's objects without its ``self``. The attribute of the class itself makes them."""
    found = (vars(one)["__call__"] for one in made.__mro__ if "__call__" in vars(one))
    method = next(found, None)
    return None if method is None else functools.partial(method, None)


def _definition(thing: Any) -> Any:
    """Return the function or class by which ``thing`` is defined."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = inspect.unwrap(thing) if callable(thing) else thing
    is_definition = inspect.isroutine(thing) or isinstance(thing, type)
    return thing if is_definition else type(thing)


def _component(plugins: Plugins, hook: str, thing: Any, label: str) -> Component[Any]:
    if isinstance(thing, Component):
        return replace(thing, needs=thing.needs | {IN_PROCESS})
    kind = COMPONENT_HOOKS[hook]
    if isinstance(thing, type):
        config = config_of(thing) or Config
        if hook in CALLED_KINDS:
            check_callable(thing, hook, label)
        return _described(thing, lambda options: made(thing, options), config)
    is_function = inspect.isroutine(thing) or isinstance(thing, functools.partial)
    if is_function and hook not in CALLED_KINDS:
        wrapper = _wrapper(plugins, hook)
        if wrapper is None:
            raise ConfigError(
                f"{label}: got the function {name_of(thing)}; expected a name, a class or an object. A function can "
                f"be no {kind}.",
                code="config/function-given",
            )
        return _wrapped(thing, wrapper)
    if hook in MADE_PER_EPISODE:
        raise ConfigError(
            f"{label}: got an object of {type(thing).__name__}; expected the class itself, of which one is made for "
            "each episode.",
            code="config/object-for-class",
        )
    if not is_function and not _can_be(thing):
        takes_functions = hook in CALLED_KINDS or _wrapper(plugins, hook) is not None
        forms = "a function, a class or an object" if takes_functions else "a class or an object"
        raise ConfigError(
            f"{label}: got {thing!r:.60} ({type(thing).__name__}); expected a name, or {kind} as {forms}",
            code="config/wrong-kind-of-object",
        )
    if hook in CALLED_KINDS:
        check_callable(thing, hook, label)
    return _described(thing, lambda options: thing, Config)


def _can_be(thing: Any) -> bool:
    """True unless ``thing`` is a plain value, which somebody took for a name."""
    return not isinstance(thing, bool | int | float | bytes | list | tuple | dict | set)


def _described(thing: Any, factory: Any, config: type[Config]) -> Component[Any]:
    doc = inspect.getdoc(_definition(thing)) or ""
    return Component(
        name=name_of(thing),
        # With the module and name of the definition, by which an exception of its code is known to be its own.
        factory=functools.update_wrapper(factory, _definition(thing), updated=()),
        config=config,
        summary=doc.partition("\n")[0],
        needs=frozenset({IN_PROCESS}),
    )


def _wrapper(plugins: Plugins, hook: str) -> Registered[Any] | None:
    entries = (e for e in plugins.registries[hook] if WRAPS_CODE in e.component.provides)
    return next(entries, None)


def _in_no_file(needed: Mapping[str, str | None]) -> type[Config]:
    """Return options of a wrapper whose function is given and needs these columns: there is no file to look for."""

    class InNoFile(Config):
        def check_outside(self) -> None:
            return

        def columns_needed(self) -> Mapping[str, str | None]:
            return needed

    return InNoFile


def _wrapped(function: Any, wrapper: Registered[Any]) -> Component[Any]:
    """Return the wrapper's component with the function itself in the place of a file's."""
    name = name_of(function)
    written: Any = Field(f"{GIVEN}:{name}", description="name of the function, for messages")
    options = wrapper.component.config
    base = (_in_no_file(options.columns_of(function)), options)
    return replace(
        wrapper.component,
        name=name,
        config=create_model("GivenFunction", __base__=base, path=(str, written)),
        factory=lambda options: wrapper.load()(options, code=function),
        needs=wrapper.component.needs | {IN_PROCESS},
        provides=wrapper.component.provides - {WRAPS_CODE},
        extra=None,
    )


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with a number behind it if another object of the kind has it."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free
