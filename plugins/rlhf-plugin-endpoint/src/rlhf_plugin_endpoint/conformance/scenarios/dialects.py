"""Dialects: Anthropic's messages, OpenAI's responses and completions are the same conversations."""

from __future__ import annotations

from typing import Any

from ..adapter import EndpointUnderTest
from ..checks import expect
from .scene import WEATHER, call, promise, scene, user

WEATHER_BLOCK = {
    "name": "weather",
    "description": "the weather of a city",
    "input_schema": WEATHER["function"]["parameters"],
}
WEATHER_ITEM = {"type": "function", **WEATHER["function"]}


def _cycle(prompt: str, index: int) -> str:
    return "warm" if "[tool]" in prompt else "let me see" + call("weather", '{"city": "Bern"}')


@promise("a tool cycle of /v1/messages is one path")
def anthropic(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, _cycle) as play:
        messages: list[dict[str, Any]] = [user("weather?")]
        body = {
            "model": play.client.model,
            "max_tokens": 200,
            "system": "be brief",
            "tools": [WEATHER_BLOCK],
        }
        reply = play.client.ask("/v1/messages", {**body, "messages": messages})
        kinds = [block["type"] for block in reply["content"]]
        expect(kinds == ["text", "tool_use"], f"expected a text and a tool_use block, got {kinds}")
        expect(
            reply["stop_reason"] == "tool_use",
            f"stop_reason is {reply['stop_reason']!r}; expected 'tool_use'",
        )
        made = reply["content"][1]
        result = {"type": "tool_result", "tool_use_id": made["id"], "content": "20 degrees"}
        messages += [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": [result]},
        ]
        reply = play.client.ask("/v1/messages", {**body, "messages": messages})
        expect(reply["content"][0]["text"] == "warm", f"expected 'warm', got {reply['content']}")
        play.check(paths=1)


@promise("a stream of /v1/messages has the answer")
def anthropic_stream(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: "a streamed answer") as play:
        body = {
            "model": play.client.model,
            "max_tokens": 200,
            "messages": [user("talk")],
            "stream": True,
        }
        events = play.client.post("/v1/messages", body).events()
        got = "".join(
            event["delta"].get("text", "")
            for event in events
            if event["type"] == "content_block_delta"
        )
        expect(got == "a streamed answer", f"the stream's pieces give {got!r}")
        expect(events[-1]["type"] == "message_stop", f"the stream ends with {events[-1]['type']!r}")
        play.check(paths=1)


@promise("a tool cycle of /v1/responses is one path")
def responses(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, _cycle) as play:
        body = {"model": play.client.model, "tools": [WEATHER_ITEM]}
        items: list[dict[str, Any]] = [user("weather?")]
        first = play.client.ask("/v1/responses", {**body, "input": items})
        made = next(item for item in first["output"] if item["type"] == "function_call")
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "mild"}
        items += [*first["output"], result]
        second = play.client.ask("/v1/responses", {**body, "input": items})
        text = second["output"][-1]["content"][0]["text"]
        expect(text == "warm", f"expected 'warm', got {text!r}")
        play.check(paths=1)


@promise("previous_response_id goes on with a response")
def previous_response(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: f"turn {prompt.count('[assistant]')}") as play:
        model = play.client.model
        first = play.client.ask("/v1/responses", {"model": model, "input": "begin"})
        body = {"model": model, "input": "go on", "previous_response_id": first["id"]}
        second = play.client.ask("/v1/responses", body)
        text = second["output"][-1]["content"][0]["text"]
        expect(text == "turn 2", f"expected 'turn 2' after two turns, got {text!r}")
        play.check(paths=1)


@promise("prompts of /v1/completions train as they were sampled")
def completions(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: " and on") as play:
        model = play.client.model
        first = play.client.ask("/v1/completions", {"model": model, "prompt": "on"})
        text = first["choices"][0]["text"]
        expect(text == " and on", f"expected ' and on', got {text!r}")
        play.client.ask("/v1/completions", {"model": model, "prompt": f"on{text}, then"})
        play.check()
