"""What a case of a client is: a mode in which it asks for an answer of a form, and how far the form is held.

Modules of cases import their framework inside of the functions, so that the list is there without the frameworks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Route = Literal["chat", "responses"]
"""Which protocol of OpenAI a client speaks."""
QUESTION = "How warm is it in Bern?"
TEXT = "It is warm."
"""What the policy writes to those who ask for text."""
NO_SUCH_TOOL = "of type 'web_search'; expected function, since nothing here runs other tools"
"""What a request is told that offers a tool of OpenAI's own."""


class Held(StrEnum):
    """What of an answer its request demands, and guided decoding holds."""

    SCHEMA = "the schema"
    """The answer is of the schema, whatever the policy would have written."""
    OBJECT = "a JSON object"
    """The client tells the schema in the prompt alone."""
    CALLS = "the schema of calls"
    """The policy answers in text or calls, as it likes; what it calls is of the schema."""
    NOTHING = "nothing"
    """The client asks for text, tells a form in the prompt alone, or offers tools that it does not force."""
    REFUSED = "refused"
    """Nothing here does what the request asks for, so it is answered with 400."""


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Bern", "Basel", "Chur"]
    degrees: Literal[-5, 0, 20]


class Storm(BaseModel):
    """A storm."""

    strength: Literal["weak", "strong"]


class Note(BaseModel):
    """Whatever is known: any JSON object is one."""

    model_config = ConfigDict(extra="allow")

    remark: Annotated[object, Field(description="anything")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy, as a case asks it."""

    client: AsyncOpenAI
    """Client of the episode's endpoint, closed behind the case."""
    model: str
    """Name of the policy."""
    temperature: float | None
    """0, or None: as the run has it."""

    @property
    def settings(self) -> dict[str, float]:
        """Settings of a request, by OpenAI's names."""
        return {} if self.temperature is None else {"temperature": self.temperature}

    @property
    def base_url(self) -> str:
        return str(self.client.base_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One mode of a client."""

    framework: str
    """Name of its distribution."""
    mode: str
    """What the framework calls it."""
    route: Route
    held: Held
    """What guided decoding holds."""
    ask: Callable[[Policy], Awaitable[object]]
    """Ask in this mode; return what the framework makes of the answer."""
    is_valid: Callable[[object], bool]
    """Whether that is what the mode promises."""
    written: str = ""
    """What the policy writes, where nothing makes it write the form."""
    refusal: str = ""
    """What the client is told, where the request is refused."""

    @property
    def name(self) -> str:
        return f"{self.framework}: {self.route}, {self.mode}"


def is_weather(found: object) -> bool:
    """Return whether an answer is of the schema: its class checks values."""
    return isinstance(found, Weather)


def is_text(found: object) -> bool:
    """Return whether an answer is the text that the policy wrote."""
    return found == TEXT


def is_note(found: object) -> bool:
    """Return whether an answer is a JSON object."""
    return isinstance(found, Note)


def of_both_routes(
    framework: str,
    mode: str,
    ask: Callable[..., Awaitable[object]],
    held: Held = Held.SCHEMA,
    is_valid: Callable[[object], bool] = is_weather,
    *,
    written: str = "",
    refusal: str = "",
) -> tuple[Case, ...]:
    """Return a mode over each of OpenAI's protocols, which ``ask`` takes as ``route``."""
    routes: tuple[Route, ...] = ("chat", "responses")
    return tuple(
        Case(
            framework=framework,
            mode=mode,
            route=route,
            held=held,
            ask=partial(ask, route=route),
            is_valid=is_valid,
            written=written,
            refusal=refusal,
        )
        for route in routes
    )
