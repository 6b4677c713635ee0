"""Modes of LangChain's ``ChatOpenAI``, and of the agents of ``create_agent`` with it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .cases import (
    NO_SUCH_TOOL,
    QUESTION,
    TEXT,
    Case,
    Held,
    Note,
    Policy,
    Route,
    Weather,
    is_note,
    is_text,
    of_both_routes,
)

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

FRAMEWORK = "langchain-openai"


def made(policy: Policy, route: Route) -> ChatOpenAI:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=policy.model,
        base_url=policy.base_url,
        api_key=policy.client.api_key,
        use_responses_api=route == "responses",
        root_async_client=policy.client,
        async_client=policy.client.chat.completions,
        **policy.settings,
    )


async def text(policy: Policy, route: Route) -> object:
    return (await made(policy, route).ainvoke(QUESTION)).text


async def streamed_text(policy: Policy, route: Route) -> object:
    return "".join([piece.text async for piece in made(policy, route).astream(QUESTION)])


async def structured(policy: Policy, route: Route, kind: type, **options: object) -> object:
    chat = made(policy, route).with_structured_output(kind, **options)
    return await chat.ainvoke(f"{QUESTION} Answer in JSON.")


async def searching(policy: Policy) -> object:
    chat = made(policy, "responses").bind_tools([{"type": "web_search"}])
    return await chat.ainvoke(QUESTION)


async def bound(policy: Policy, route: Route, choice: str) -> object:
    chat = made(policy, route).bind_tools([Weather], tool_choice=choice)
    (call,) = (await chat.ainvoke(QUESTION)).tool_calls
    return Weather.model_validate(call["args"])


async def streamed_call(policy: Policy, route: Route) -> object:
    chat = made(policy, route).bind_tools([Weather], tool_choice="any")
    whole = None
    async for piece in chat.astream(QUESTION):
        whole = piece if whole is None else whole + piece
    (call,) = whole.tool_calls
    return Weather.model_validate(call["args"])


async def agent(policy: Policy, route: Route, strategy: str) -> object:
    """Return the structured response of an agent without tools of its own."""
    from langchain.agents import create_agent, structured_output

    form = getattr(structured_output, strategy)(Weather)
    made_agent = create_agent(made(policy, route), tools=[], response_format=form)
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    return (await made_agent.ainvoke(asked, {"recursion_limit": 8}))["structured_response"]


_cases = partial(of_both_routes, FRAMEWORK)

CASES = (
    *_cases("text", text, Held.NOTHING, is_text, written=TEXT),
    *_cases("text, streamed", streamed_text, Held.NOTHING, is_text, written=TEXT),
    *_cases("json_schema", partial(structured, kind=Weather, method="json_schema")),
    *_cases(
        "json_schema, strict",
        partial(structured, kind=Weather, method="json_schema", strict=True),
    ),
    *_cases("function_calling", partial(structured, kind=Weather, method="function_calling")),
    *_cases(
        "function_calling, strict",
        partial(structured, kind=Weather, method="function_calling", strict=True),
    ),
    *_cases(
        "json_mode",
        partial(structured, kind=Note, method="json_mode"),
        Held.OBJECT,
        is_note,
    ),
    *_cases("bind_tools, any", partial(bound, choice="any")),
    *_cases("bind_tools, required", partial(bound, choice="required")),
    *_cases("bind_tools, a name", partial(bound, choice="Weather")),
    *_cases("bind_tools, any, streamed", streamed_call),
    *_cases("create_agent, ToolStrategy", partial(agent, strategy="ToolStrategy")),
    *_cases("create_agent, ProviderStrategy", partial(agent, strategy="ProviderStrategy")),
    Case(
        framework=FRAMEWORK,
        mode="bind_tools, web_search",
        route="responses",
        held=Held.REFUSED,
        ask=searching,
        is_valid=is_text,
        refusal=NO_SUCH_TOOL,
    ),
)
