"""Modes of agno, over both of OpenAI's protocols."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from .cases import QUESTION, Held, Note, Policy, Route, Weather, is_note, of_both_routes

if TYPE_CHECKING:
    from agno.agent import Agent

FRAMEWORK = "agno"


def made(policy: Policy, route: Route, **options: object) -> Agent:
    """Return an agent that asks the policy."""
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat, OpenAIResponses

    kind = OpenAIChat if route == "chat" else OpenAIResponses
    model = kind(id=policy.model, async_client=policy.client, **policy.settings)
    return Agent(model=model, telemetry=False, **options)


async def output_schema(policy: Policy, route: Route) -> object:
    return (await made(policy, route, output_schema=Weather).arun(QUESTION)).content


async def json_mode(policy: Policy, route: Route) -> object:
    agent = made(policy, route, output_schema=Note, use_json_mode=True)
    return (await agent.arun(QUESTION)).content


async def streamed(policy: Policy, route: Route) -> object:
    agent = made(policy, route, output_schema=Weather)
    contents = [each.content async for each in agent.arun(QUESTION, stream=True)]
    return contents[-1]


async def forced(policy: Policy, route: Route) -> object:
    """Return what the tool was called with: its result ends the run."""
    from agno.tools import tool

    @tool(stop_after_tool_call=True)
    def weather(city: Literal["Bern", "Basel", "Chur"], degrees: Literal[-5, 0, 20]) -> str:
        """The weather of a city."""
        return Weather(city=city, degrees=degrees).model_dump_json()

    run = await made(policy, route, tools=[weather], tool_choice="required").arun(QUESTION)
    (call,) = run.tools
    return Weather.model_validate(call.tool_args)


_cases = partial(of_both_routes, FRAMEWORK)

CASES = (
    *_cases("output_schema", output_schema),
    *_cases("output_schema, streamed", streamed),
    *_cases("use_json_mode", json_mode, Held.OBJECT, is_note),
    *_cases("tool_choice required", forced),
)
