"""Kinds of components that are called like functions, so that a function can be one: with what, and what comes back."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import ConfigError, PluginError, RLHFError

AnswerT = TypeVar("AnswerT")

CALLED_KINDS: Mapping[str, tuple[str, ...]] = {
    "rlhf_advantage_estimators": ("batch",),
    "rlhf_policy_losses": ("inputs",),
    "rlhf_preference_losses": ("inputs",),
    "rlhf_is_corrections": ("old_logprobs", "rollout_logprobs", "action_mask"),
    "rlhf_kl_estimators": ("log_ratio",),
    "rlhf_eval_metrics": ("episodes",),
    "rlhf_lr_schedules": ("point",),
}
"""Hooks whose components are called, and the arguments that they are called with, by position."""


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
            f"{label}: objects of {name} cannot be called; expected __call__ with ({', '.join(arguments)})"
        )
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise _refused(label, arguments, list(signature.parameters)) from None


def _call_of(made: type) -> Callable[..., Any] | None:
    """Return ``__call__`` of a class's objects without its ``self``. The attribute of the class itself makes them."""
    found = (vars(one)["__call__"] for one in made.__mro__ if "__call__" in vars(one))
    method = next(found, None)
    return None if method is None else functools.partial(method, None)


def check_definition(node: ast.stmt, hook: str, label: str) -> None:
    """Refuse a function, or a class by its ``__call__``, whose source shows that it cannot be called as its kind is.

    Raises:
        ConfigError: it takes other arguments.
    """
    arguments, called = CALLED_KINDS[hook], _called(node)
    # A decorator may change what the function takes.
    if called is None or called.decorator_list:
        return
    given = called.args
    positional = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
    own = positional[1:] if isinstance(node, ast.ClassDef) else positional
    required = len(own) - len(given.defaults)
    fits = required <= len(arguments) and (len(own) >= len(arguments) or given.vararg is not None)
    if not fits or None in given.kw_defaults:
        raise _refused(label, arguments, [*own, *(one.arg for one in given.kwonlyargs)])


def answered(answer: Any, expected: type[AnswerT], who: str) -> AnswerT:
    """Return what a component answered to its call.

    Raises:
        PluginError: it is of another type.
    """
    if not isinstance(answer, expected):
        raise PluginError(
            f"{who} returned {answer!r:.60} ({type(answer).__name__}); expected {expected.__name__}"
        )
    return answer


@contextmanager
def asking(who: str) -> Iterator[None]:
    """Name, in what a component's code raises in the body, the component and the call.

    Raises:
        PluginError: the code raised anything but an ``RLHFError``, which says itself what is wrong.
    """
    try:
        yield
    except RLHFError:
        raise
    except Exception as error:  # a plugin may raise anything
        raise PluginError(f"{who} raised {type(error).__name__}: {error}") from error


def _called(node: ast.stmt) -> ast.FunctionDef | None:
    """Return the definition of what is called; None: the source does not show it, as where a class inherits it."""
    if isinstance(node, ast.FunctionDef):
        return node
    body = node.body if isinstance(node, ast.ClassDef) else []
    methods = (one for one in body if isinstance(one, ast.FunctionDef))
    return next((one for one in methods if one.name == "__call__"), None)


def _refused(label: str, arguments: Sequence[str], taken: Sequence[str]) -> ConfigError:
    word = "argument" if len(arguments) == 1 else "arguments"
    return ConfigError(
        f"{label}: expected what can be called with {len(arguments)} {word}, "
        f"({', '.join(arguments)}), by position; it takes ({', '.join(taken)})",
        code="config/not-callable",
    )
