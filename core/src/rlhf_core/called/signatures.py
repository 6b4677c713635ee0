"""Kinds of components that are called like functions, so that a function can be one: with what they are
called, and who is named where they raise."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..errors import ConfigError, PluginError, RLHFError
from ..problem import is_ours, problem_of

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
        raise refused(label, arguments, [*own, *(one.arg for one in given.kwonlyargs)])


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
        found = problem_of(error)
        place = "".join(f" ({line})" for line in found.where[-1:] if not is_ours(line))
        raise PluginError(f"{who} {found.text}{place}", code="plugin/raised") from error


def _called(node: ast.stmt) -> ast.FunctionDef | None:
    """Return the definition of what is called; None: the source does not show it, as where a class inherits it."""
    if isinstance(node, ast.FunctionDef):
        return node
    body = node.body if isinstance(node, ast.ClassDef) else []
    methods = (one for one in body if isinstance(one, ast.FunctionDef))
    return next((one for one in methods if one.name == "__call__"), None)


def refused(label: str, arguments: Sequence[str], taken: Sequence[str]) -> ConfigError:
    """Return the error for what is called with ``arguments`` and takes others."""
    word = "argument" if len(arguments) == 1 else "arguments"
    return ConfigError(
        f"{label}: expected what can be called with {len(arguments)} {word}, "
        f"({', '.join(arguments)}), by position; it takes ({', '.join(taken)})",
        code="config/not-callable",
    )
