"""Modes of instructor that speak to OpenAI's endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from .cases import QUESTION, Case, Held, Note, Policy, Storm, Weather, is_note, is_weather

if TYPE_CHECKING:
    from instructor import AsyncInstructor

FRAMEWORK = "instructor"
ASKED = {"messages": [{"role": "user", "content": QUESTION}], "max_retries": 1}
SCHEMA_MODES = (
    "TOOLS",
    "TOOLS_STRICT",
    "FUNCTIONS",
    "JSON_SCHEMA",
    "JSON_O1",
)
RESPONSE_MODES = ("RESPONSES_TOOLS", "RESPONSES_TOOLS_WITH_INBUILT_TOOLS")
FOUND = Weather(city="Bern", degrees=20).model_dump_json()
FENCED = f"```json\n{FOUND}\n```"
CALLED = f'<tool_call>{{"name": "Weather", "arguments": {FOUND}}}</tool_call>'
STORMS = '<tool_call>{"name": "Storm", "arguments": {"strength": "weak"}}</tool_call>'


def opened(policy: Policy, mode: str) -> AsyncInstructor:
    """Return instructor's client in a mode."""
    import instructor

    return instructor.from_openai(policy.client, mode=instructor.Mode[mode])


async def create(policy: Policy, mode: str, kind: object, **options: object) -> object:
    """Return an object of a kind."""
    client = opened(policy, mode)
    return await client.create(
        model=policy.model, response_model=kind, **ASKED, **options, **policy.settings
    )


async def create_parallel(policy: Policy) -> object:
    """Return the objects of parallel calls."""
    return list(await create(policy, "PARALLEL_TOOLS", Iterable[Weather | Storm]))


async def create_partial(policy: Policy, mode: str) -> object:
    """Return the last of the objects that a stream grows."""
    stream = opened(policy, mode).create_partial(
        model=policy.model, response_model=Weather, **ASKED, **policy.settings
    )
    last = [each async for each in stream][-1]
    return Weather.model_validate(last.model_dump())


def are_both(found: object) -> bool:
    """Return whether both of the calls that the policy wrote were read."""
    return found == [Weather(city="Bern", degrees=20), Storm(strength="weak")]


def _case(
    mode: str,
    ask: Callable[[Policy], Awaitable[object]],
    held: Held = Held.SCHEMA,
    is_valid: Callable[[object], bool] = is_weather,
    written: str = "",
) -> Case:
    return Case(
        framework=FRAMEWORK,
        mode=mode,
        route="responses" if mode.startswith("RESPONSES") else "chat",
        held=held,
        ask=ask,
        is_valid=is_valid,
        written=written,
    )


CASES = (
    *(
        _case(mode, partial(create, mode=mode, kind=Weather))
        for mode in (*SCHEMA_MODES, *RESPONSE_MODES)
    ),
    _case("TOOLS, strict", partial(create, mode="TOOLS", kind=Weather, strict=True)),
    _case(
        "JSON",
        partial(create, mode="JSON", kind=Note),
        Held.OBJECT,
        is_note,
    ),
    _case("TOOLS, partial", partial(create_partial, mode="TOOLS")),
    _case("JSON_SCHEMA, partial", partial(create_partial, mode="JSON_SCHEMA")),
    _case("MD_JSON", partial(create, mode="MD_JSON", kind=Weather), Held.NOTHING, written=FENCED),
    _case("PARALLEL_TOOLS", create_parallel, Held.NOTHING, are_both, CALLED + STORMS),
)
