"""Python functions as tools: the schema comes from the signature, its descriptions from the docstring.

Types are pydantic's: numbers, text, ``Literal``, ``Optional``, enums, lists, dicts, dataclasses and models. An
``async`` function runs on the event loop. Another one runs on a thread of its own, so that it may block; its deadline
gives it up, but nothing can stop a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined

from rlhf_core import PluginError

from .bounded import THREADS, on_thread
from .docstrings import described
from .results import ToolFailure, ToolResult
from .tool import Tool

_SHOWN_PROBLEMS = 5


def function_tool(
    function: Callable[..., Any], *, name: str | None = None, timeout_s: float | None = None
) -> Tool:
    """Return a function, or a method of an object, as a tool.

    Args:
        name: name of the tool; None: the function's own.
        timeout_s: seconds that a call may take; None: those of the limits.

    Raises:
        PluginError: something about the function cannot be described to a policy; the message says what.
    """
    owner = getattr(function, "__self__", None)
    plain = function if owner is None else getattr(function, "__func__", function)
    signature = _signature(plain, bound=owner is not None)
    is_async = inspect.iscoroutinefunction(plain)

    async def run(arguments: Mapping[str, Any]) -> Any:
        try:
            given = signature.model.model_validate(dict(arguments))
        except ValidationError as error:
            return ToolResult.failed(ToolFailure.INVALID_ARGUMENTS, _problems(error))
        values = {argument: getattr(given, field) for argument, field in signature.fields.items()}
        if is_async:
            return await function(**values)
        return await on_thread(lambda: function(**values), signature.name)

    return Tool(
        name=name or signature.name,
        description=signature.description,
        parameters=signature.parameters,
        run=run,
        timeout_s=timeout_s,
        slots=None if is_async else THREADS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    name: str
    description: str
    model: type[BaseModel]
    fields: Mapping[str, str]
    """Argument of the function -> field of the model, whose names must not be those of pydantic's methods."""
    parameters: Mapping[str, Any]


class _PlainSchema(GenerateJsonSchema):
    """JSON schema without the titles that pydantic makes of names, which tell a policy nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any], *, bound: bool) -> _Signature:
    """Return what a policy is told of a function. Environments are made per episode, so this is kept."""
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise PluginError(
            f"{function!r} cannot be a tool: expected a function with a name (def), or a method",
            code="tool/not-a-function",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(
            f"tool {name!r} is a generator; return one result instead of yielding it",
            code="tool/generator",
        )
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise PluginError(
            f"tool {name!r}: its annotations cannot be read ({error}); name types that its module defines or imports",
            code="tool/unreadable-annotations",
        ) from error
    parameters = parameters[1:] if bound else parameters
    about = described(inspect.getdoc(function))
    unknown = about.arguments.keys() - {parameter.name for parameter in parameters}
    if unknown:
        raise PluginError(
            f"tool {name!r}: the docstring describes {', '.join(sorted(unknown))}, which the function does not take; "
            f"it takes {', '.join(parameter.name for parameter in parameters) or 'nothing'}",
            code="tool/unknown-parameter",
        )
    model = _model(name, parameters, about.arguments)
    try:
        schema = model.model_json_schema(schema_generator=_PlainSchema)
    except PydanticUserError as error:
        raise PluginError(
            f"tool {name!r} cannot be described in JSON: {error.message}",
            code="tool/not-json",
        ) from error
    return _Signature(
        name=name,
        description=about.text,
        model=model,
        fields={parameter.name: f"a_{parameter.name}" for parameter in parameters},
        parameters=_without_titles(schema),
    )


def _model(
    name: str, parameters: list[inspect.Parameter], descriptions: Mapping[str, str]
) -> type[BaseModel]:
    """Return a model of the arguments, by which they are described, checked and converted."""
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise PluginError(
                f"tool {name!r}: {parameter} has no name that a policy could write; expected ordinary parameters "
                "(no *args, **kwargs or positional-only ones)",
                code="tool/parameter-name",
            )
        if parameter.annotation is parameter.empty:
            raise PluginError(
                f"tool {name!r}: parameter {parameter.name!r} has no type; annotate it, such as {parameter.name}: str",
                code="tool/no-type",
            )
        default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
        # A prefix keeps names such as "copy" or "model_config" apart from pydantic's own; policies see the alias.
        fields[f"a_{parameter.name}"] = (
            parameter.annotation,
            Field(
                default, alias=parameter.name, description=descriptions.get(parameter.name) or None
            ),
        )
    try:
        return create_model(
            name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields
        )
    except PydanticUserError as error:
        raise PluginError(
            f"tool {name!r}: a parameter's type cannot come from JSON: {error.message}",
            code="tool/type-not-json",
        ) from error


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the titles of models, and without the prohibition of further properties at its top."""
    definitions = {
        name: {key: value for key, value in one.items() if key != "title"}
        for name, one in schema.get("$defs", {}).items()
    }
    plain = {key: value for key, value in schema.items() if key not in ("title", "$defs")}
    plain.setdefault("properties", {})
    plain.pop("additionalProperties", None)
    return plain | ({"$defs": definitions} if definitions else {})


def _problems(error: ValidationError) -> str:
    """Return what is wrong with arguments, for a policy: each problem with its place, and no documentation links."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [
        f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
        for problem in found[:_SHOWN_PROBLEMS]
    ]
    more = len(found) - len(problems)
    return "; ".join([*problems, f"and {more} more"] if more else problems)
