"""Agents of each framework that call two tools at once, then one again, and answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from . import agno_cases, langchain_cases, openai_agents_cases, pydantic_ai_cases
from .cases import QUESTION, TEXT, Policy, Route

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

FIRST = (
    '{"name": "weather", "arguments": {"city": "Bern"}}',
    '{"name": "height", "arguments": {"city": "Bern"}}',
)
AGAIN = '{"name": "weather", "arguments": {"city": "Chur"}}'


def written(read: str) -> str:
    """Return the policy's answer to a conversation: two calls, one call, a text."""
    if "20 degrees in Chur" in read:
        return TEXT
    if "20 degrees in Bern" in read:
        return _called(AGAIN)
    return "".join(map(_called, FIRST))


def _called(call: str) -> str:
    return f"<tool_call>{call}</tool_call>"


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name.
    """
    return f"20 degrees in {city}"


def height(city: str) -> str:
    """The height of a city.

    Args:
        city: its name.
    """
    return f"{city} lies high"


async def openai_agents(policy: Policy, route: Route) -> object:
    from agents import function_tool

    # Strict tools are a form, which the scripted policy's engine does not enforce.
    tools = [function_tool(each, strict_mode=False) for each in (weather, height)]
    return await openai_agents_cases.run(openai_agents_cases.made(policy, route, tools=tools))


async def pydantic_ai(policy: Policy, route: Route) -> object:
    from pydantic_ai import Agent, Tool

    tools = [Tool(each, strict=False) for each in (weather, height)]
    agent = Agent(pydantic_ai_cases.model_of(policy, route), tools=tools)
    return (await agent.run(QUESTION)).output


async def langchain(policy: Policy, route: Route) -> object:
    from langchain.agents import create_agent

    agent = create_agent(langchain_cases.made(policy, route), tools=[weather, height])
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    return (await agent.ainvoke(asked))["messages"][-1].text


async def agno(policy: Policy, route: Route) -> object:
    return (await agno_cases.made(policy, route, tools=[weather, height]).arun(QUESTION)).content


async def agno_of_two_protocols(policy: Policy) -> object:
    """Return the answers over chats and then, in the same session, over responses, for which agno renames the calls."""
    from agno.db.in_memory import InMemoryDb

    agent = agno_cases.made(
        policy,
        "chat",
        tools=[weather, height],
        db=InMemoryDb(),
        add_history_to_context=True,
        session_id="weather",
    )
    first = (await agent.arun(QUESTION)).content
    agent.model = agno_cases.made(policy, "responses").model
    return [first, (await agent.arun("Are you sure?")).content]


async def agno_of_anthropic(policy: Policy) -> object:
    from agno.agent import Agent
    from agno.models.anthropic import Claude

    async with anthropic_client(policy) as client:
        model = Claude(id=policy.model, async_client=client)
        agent = Agent(model=model, telemetry=False, tools=[weather, height])
        return (await agent.arun(QUESTION)).content


async def pydantic_ai_of_anthropic(policy: Policy) -> object:
    from pydantic_ai import Agent, Tool
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async with anthropic_client(policy) as client:
        tools = [Tool(each, strict=False) for each in (weather, height)]
        provider = AnthropicProvider(anthropic_client=client)
        agent = Agent(AnthropicModel(policy.model, provider=provider), tools=tools)
        return (await agent.run(QUESTION)).output


def anthropic_client(policy: Policy) -> AsyncAnthropic:
    """Return a client of the same episode in Anthropic's protocol."""
    from anthropic import AsyncAnthropic

    root = policy.base_url.removesuffix("/").removesuffix("/v1")
    return AsyncAnthropic(base_url=root, api_key=policy.client.api_key, max_retries=0)


LOOPS: Mapping[str, Callable[[Policy], Awaitable[object]]] = {
    f"{ask.__name__}: {route}": partial(ask, route=route)
    for ask in (openai_agents, pydantic_ai, langchain, agno)
    for route in ("chat", "responses")
} | {
    "pydantic_ai: messages": pydantic_ai_of_anthropic,
    "agno: messages": agno_of_anthropic,
}
