"""Modes of openai-agents, over both of OpenAI's protocols."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from .cases import (
    NO_SUCH_TOOL,
    QUESTION,
    TEXT,
    Case,
    Held,
    Policy,
    Route,
    Weather,
    is_text,
    of_both_routes,
)

if TYPE_CHECKING:
    from agents import Agent

FRAMEWORK = "openai-agents"


def made(policy: Policy, route: Route, *, choice: str | None = None, **options: object) -> Agent:
    """Return an agent that asks the policy."""
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        set_tracing_disabled,
    )

    set_tracing_disabled(True)
    kind = OpenAIChatCompletionsModel if route == "chat" else OpenAIResponsesModel
    return Agent(
        name="Weatherman",
        instructions="Be brief.",
        model=kind(policy.model, policy.client),
        model_settings=ModelSettings(tool_choice=choice, **policy.settings),
        **options,
    )


def tool(name: str, *, strict: bool = True) -> object:
    """Return a tool that gives back what it was called with."""
    from agents import function_tool

    @function_tool(name_override=name, strict_mode=strict)
    def shown(city: Literal["Bern", "Basel", "Chur"], degrees: Literal[-5, 0, 20]) -> str:
        """The weather of a city."""
        return Weather(city=city, degrees=degrees).model_dump_json()

    return shown


async def run(agent: Agent) -> object:
    from agents import Runner

    return (await Runner.run(agent, QUESTION, max_turns=3)).final_output


async def text(policy: Policy, route: Route) -> object:
    return await run(made(policy, route))


async def output_type(policy: Policy, route: Route) -> object:
    return await run(made(policy, route, output_type=Weather))


async def loose_output_type(policy: Policy, route: Route) -> object:
    from agents import AgentOutputSchema

    kind = AgentOutputSchema(Weather, strict_json_schema=False)
    return await run(made(policy, route, output_type=kind))


async def streamed_output_type(policy: Policy, route: Route) -> object:
    from agents import Runner

    streamed = Runner.run_streamed(made(policy, route, output_type=Weather), QUESTION)
    async for _ in streamed.stream_events():
        pass
    return streamed.final_output


async def forced(policy: Policy, route: Route, choice: str) -> object:
    """Return what the tool was called with: its result ends the run."""
    tools = [tool("weather"), tool("forecast")]
    agent = made(policy, route, choice=choice, tools=tools, tool_use_behavior="stop_on_first_tool")
    return Weather.model_validate_json(str(await run(agent)))


async def offered(policy: Policy, route: Route) -> object:
    """Return what a tool was called with that the policy could have left alone."""
    tools = [tool("weather")]
    agent = made(policy, route, tools=tools, tool_use_behavior="stop_on_first_tool")
    agent.model_settings.parallel_tool_calls = False
    return Weather.model_validate_json(str(await run(agent)))


async def output_type_or_call(policy: Policy, route: Route) -> object:
    """Return the output, or what the tool was called with: its result ends the run."""
    options = {"tools": [tool("weather")], "tool_use_behavior": "stop_on_first_tool"}
    agent = made(policy, route, output_type=Weather, **options)
    found = await run(agent)
    return Weather.model_validate_json(found) if isinstance(found, str) else found


async def searching(policy: Policy, route: Route) -> object:
    from agents import WebSearchTool

    return await run(made(policy, route, tools=[WebSearchTool()]))


async def handoff(policy: Policy, route: Route) -> object:
    """Return the output of the agent to which the first one was made to hand the task."""
    clerk = made(policy, route, output_type=Weather, handoff_description="Knows the weather.")
    clerk.name = "Clerk"
    first = made(policy, route, choice="transfer_to_clerk", handoffs=[clerk])
    return await run(first)


_cases = partial(of_both_routes, FRAMEWORK)

CASES = (
    *_cases("text", text, Held.NOTHING, is_text, written=TEXT),
    *_cases("output_type", output_type),
    *_cases("output_type, not strict", loose_output_type),
    *_cases("output_type, streamed", streamed_output_type),
    *_cases("output_type beside a tool", output_type_or_call),
    *_cases("tool_choice required", partial(forced, choice="required")),
    *_cases("tool_choice of a name", partial(forced, choice="forecast")),
    *_cases("tools, not forced", offered, Held.CALLS),
    *_cases("handoff", handoff),
    Case(
        framework=FRAMEWORK,
        mode="WebSearchTool",
        route="responses",
        held=Held.REFUSED,
        ask=partial(searching, route="responses"),
        is_valid=is_text,
        refusal=NO_SUCH_TOOL,
    ),
)
