"""smolagents, whose agents force a tool with each request."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel

from .cases import QUESTION, Case, Held, Policy, Weather


class Answer(BaseModel):
    """Arguments of the tool with which an agent of smolagents ends."""

    answer: object


async def forced(policy: Policy) -> object:
    """Return the arguments of the call that the first request forces."""
    return await asyncio.to_thread(_run, policy)


def _run(policy: Policy) -> object:
    from smolagents import ActionStep, LogLevel, OpenAIModel, ToolCallingAgent, tool

    @tool
    def weather(city: Literal["Bern", "Basel", "Chur"], degrees: Literal[-5, 0, 20]) -> str:
        """The weather of a city.

        Args:
            city: its name.
            degrees: how warm it is.
        """
        return f"{degrees} degrees in {city}"

    model = OpenAIModel(
        policy.model,
        api_base=policy.base_url,
        api_key=policy.client.api_key,
        **policy.settings,
    )
    agent = ToolCallingAgent(
        tools=[weather], model=model, max_steps=1, verbosity_level=LogLevel.OFF
    )
    agent.run(QUESTION)
    step = next(each for each in agent.memory.steps if isinstance(each, ActionStep))
    (call,) = step.tool_calls
    kinds = {"weather": Weather, "final_answer": Answer}
    return kinds[call.name].model_validate(call.arguments)


CASES = (
    Case(
        framework="smolagents",
        mode="ToolCallingAgent",
        route="chat",
        held=Held.SCHEMA,
        ask=forced,
        is_valid=lambda found: isinstance(found, Weather | Answer),
    ),
)
