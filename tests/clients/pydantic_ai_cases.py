"""Modes of pydantic-ai, over both of OpenAI's protocols."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .cases import (
    QUESTION,
    TEXT,
    Held,
    Note,
    Policy,
    Route,
    Storm,
    Weather,
    is_note,
    is_text,
    of_both_routes,
)

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

FRAMEWORK = "pydantic-ai-slim"


def model_of(policy: Policy, route: Route) -> OpenAIChatModel | OpenAIResponsesModel:
    """Return the policy as pydantic-ai's model."""
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if route == "chat" else OpenAIResponsesModel
    return kind(policy.model, provider=OpenAIProvider(openai_client=policy.client))


def made(policy: Policy, route: Route, output: object) -> Agent:
    """Return an agent that asks the policy, and once more where an answer is none."""
    from pydantic_ai import Agent

    return Agent(model_of(policy, route), output_type=output, model_settings=policy.settings)


async def run(policy: Policy, route: Route, output: Callable[[], object]) -> object:
    return (await made(policy, route, output()).run(QUESTION)).output


async def streamed(policy: Policy, route: Route, output: Callable[[], object]) -> object:
    async with made(policy, route, output()).run_stream(QUESTION) as stream:
        return await stream.get_output()


def native() -> object:
    from pydantic_ai import NativeOutput

    return NativeOutput(Weather)


def strict_native() -> object:
    from pydantic_ai import NativeOutput

    return NativeOutput(Weather, strict=True)


def prompted() -> object:
    from pydantic_ai import PromptedOutput

    return PromptedOutput(Note)


def as_tool() -> object:
    from pydantic_ai import ToolOutput

    return ToolOutput(Weather)


def as_tools() -> object:
    from pydantic_ai import ToolOutput

    return [ToolOutput(Weather, name="weather"), ToolOutput(Storm, name="storm")]


_cases = partial(of_both_routes, FRAMEWORK)

CASES = (
    *_cases("text", partial(run, output=lambda: str), Held.NOTHING, is_text, written=TEXT),
    *_cases("NativeOutput", partial(run, output=native)),
    *_cases("NativeOutput, strict", partial(run, output=strict_native)),
    *_cases("NativeOutput, streamed", partial(streamed, output=native)),
    *_cases("PromptedOutput", partial(run, output=prompted), Held.OBJECT, is_note),
    *_cases("ToolOutput", partial(run, output=as_tool)),
    *_cases("ToolOutput, streamed", partial(streamed, output=as_tool)),
    *_cases(
        "ToolOutput of two types",
        partial(run, output=as_tools),
        is_valid=lambda found: isinstance(found, (Weather, Storm)),
    ),
)
