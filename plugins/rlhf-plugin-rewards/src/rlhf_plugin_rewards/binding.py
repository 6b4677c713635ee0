"""Arguments for a user's reward function, chosen by the names of the function's parameters."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core import PluginError, RewardError
from rlhf_core.contracts import RewardRequest

_FIELDS = (
    *("prompt", "response", "row", "uid", "turns", "token_ids", "action_mask", "truncated"),
    "media",
)
"""Fields of a request that a parameter may name."""
_SINGULARS = {
    "prompts": "prompt",
    "responses": "response",
    "rows": "row",
    "uids": "uid",
    "requests": "request",
}
"""Field of each parameter name in the plural. Such a parameter marks a function of a whole batch."""
_NO_COLUMNS = frozenset({*_FIELDS, *_SINGULARS, "request"})
"""Names of parameters that are no columns of the data."""

NO_FUNCTION = "reward/not-a-function"
"""Code of the error about an object that scores nothing."""

_MISSING = object()
"""Stands for the value of a name that is neither a field nor a column."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The way in which one reward function is called."""

    written: str
    """Reference to the function as the user wrote it, for messages."""
    parameters: tuple[inspect.Parameter, ...]
    batch: bool
    """True if the function takes lists, with one entry a sample."""

    @classmethod
    def of(cls, function: Callable[..., Any], written: str, batch: bool | None) -> Binding:
        """Return the binding that follows from a function's signature.

        Args:
            written: reference to the function as the user wrote it.
            batch: True if the function takes lists; None decides by the names of its parameters.

        Raises:
            PluginError: the function has no signature, no parameters, or parameters that cannot be passed by name; or
                it names a field in both numbers.
        """
        try:
            parameters = tuple(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise PluginError(
                f"{written} has no signature that can be read: {error}",
                code="reward/malformed-function",
            ) from error
        parameters = tuple(p for p in parameters if p.kind is not p.VAR_POSITIONAL)
        if not parameters:
            raise PluginError(
                f"{written} takes no arguments; expected some of {', '.join(_FIELDS)}, or columns of the data",
                code="reward/no-arguments",
            )
        if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters):
            raise PluginError(
                f"{written} takes arguments by position only; arguments are passed by name, so remove the '/'",
                code="reward/by-position",
            )
        if batch is None:
            names = {parameter.name for parameter in parameters}
            if both := next(
                (many for many in _SINGULARS if {many, _SINGULARS[many]} <= names), None
            ):
                raise PluginError(
                    f"{written} takes {_SINGULARS[both]!r} and {both!r}: expected one of them, since the second says "
                    f"that arguments are lists. With this reward's option batch at false {both!r} is a column of the "
                    "data",
                    code="reward/one-and-many",
                )
            batch = not names.isdisjoint(_SINGULARS)
        return cls(written, parameters, batch)

    def arguments(self, request: RewardRequest) -> dict[str, Any]:
        """Return the arguments for one sample, by name.

        Raises:
            RewardError: a parameter is neither a field nor a column; the message lists the columns that exist.
        """
        arguments: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                everything = {**request.row, **{name: getattr(request, name) for name in _FIELDS}}
                arguments |= self._not_named(everything)
                continue
            value = _value(request, parameter.name)
            if value is not _MISSING:
                arguments[parameter.name] = value
            elif parameter.default is parameter.empty:
                raise self._unknown(parameter.name, request)
        return arguments

    def lists(self, requests: Sequence[RewardRequest]) -> dict[str, Any]:
        """Return the arguments for a batch, by name; each value is a list with one entry a sample.

        Raises:
            RewardError: a parameter is neither a field nor a column; the message lists the columns that exist.
        """
        arguments: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= self._not_named(_all_lists(requests))
                continue
            name = _SINGULARS.get(parameter.name, parameter.name)
            values = [_value(request, name) for request in requests]
            missing = next((i for i, value in enumerate(values) if value is _MISSING), None)
            if missing is None:
                arguments[parameter.name] = values
            elif parameter.default is parameter.empty:
                raise self._unknown(parameter.name, requests[missing])
        return arguments

    def _not_named(self, everything: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries that no parameter names, which go into ``**extra``."""
        named = {parameter.name for parameter in self.parameters}
        return {key: value for key, value in everything.items() if key not in named}

    def _unknown(self, name: str, request: RewardRequest) -> RewardError:
        near = difflib.get_close_matches(name, [*request.row, *_FIELDS], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return RewardError(
            f"{self.written} takes {name!r}, which is no column of this row.{hint} "
            f"Columns: {_listed(request.row)}. Also: {', '.join(_FIELDS)}, request",
            code="data/missing-column",
        )


def needed_columns(definition: ast.stmt) -> list[str]:
    """Return the parameters of a function that have no default and are no fields of a sample: columns of the data.

    Empty where the source does not show them, as under a decorator.
    """
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    if definition.decorator_list:
        return []
    given = definition.args
    named = given.args[: len(given.args) - len(given.defaults)]
    required = [
        *named,
        *(
            one
            for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if default is None
        ),
    ]
    return [one.arg for one in required if one.arg not in _NO_COLUMNS]


def refuse_class_without_call(definition: ast.stmt, written: str) -> None:
    """Refuse a class that shows in its source that it scores nothing.

    Args:
        written: reference to the class as the user wrote it.

    Raises:
        PluginError: it has neither a base, nor a decorator, nor one of the methods.
    """
    if not isinstance(definition, ast.ClassDef) or definition.bases or definition.decorator_list:
        return
    # An assignment may make a method too, so only a class of nothing but others is refused.
    shown = {
        name
        for node in definition.body
        for name in [getattr(node, "name", None), *_targets(node)]
        if name is not None
    }
    if not shown & {"score", "__call__", "__getattr__"}:
        raise PluginError(no_function(written, f"the class {definition.name}"), code=NO_FUNCTION)


def no_function(written: str, got: str) -> str:
    """Return the message about an object that scores nothing."""
    return (
        f"{written} is {got}; expected a function that returns a number, as in def score(response): ..., or a class "
        "with __call__(self, response), or with score(self, requests)"
    )


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def columns_of(function: Callable[..., Any]) -> list[str]:
    """Return the columns that a function's parameters name, as ``needed_columns`` does of its source.

    Empty where it has no signature that can be read.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []  # ``Binding.of`` refuses it by name.
    return [
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and one.default is one.empty
        and one.name not in _NO_COLUMNS
    ]


def _all_lists(requests: Sequence[RewardRequest]) -> dict[str, Any]:
    """Return every column and field as a list with one entry a sample; None where a row lacks the column."""
    columns = dict.fromkeys(key for request in requests for key in request.row)
    plurals = {field: name for name, field in _SINGULARS.items()}
    return {key: [request.row.get(key) for request in requests] for key in columns} | {
        plurals.get(field, field): [getattr(request, field) for request in requests]
        for field in _FIELDS
    }


def _value(request: RewardRequest, name: str) -> Any:
    if name in _FIELDS:
        return getattr(request, name)
    if name == "request":
        return request
    return request.row.get(name, _MISSING)


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(row) or "none (the task has no data row)"
