"""Turns of a rollout: its text in pieces, each with who wrote it and the role that a chat template's marks give it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

PROMPT, POLICY, ENVIRONMENT = "prompt", "policy", "environment"
"""Writers of a piece."""

_ROLE = r"(?P<role>[a-z][a-z0-9_]{0,30})"
_MARKS = re.compile(
    "|".join(
        pattern.replace("(?P<role>", f"(?P<role{number}>")
        for number, pattern in enumerate(
            (
                rf"<\|im_start\|>{_ROLE}(?=\n)",
                rf"<\|start_header_id\|>{_ROLE}<\|end_header_id\|>",
                rf"<start_of_turn>{_ROLE}(?=\n)",
                rf"<\|start\|>{_ROLE}(?=<\||\b)",
                r"<\|(?P<role>user|assistant|system|observation|tool)\|>",
            )
        )
    )
)
"""Beginnings of turns in the templates of common families. A template without them is shown as one piece."""
_TOOLS = re.compile(r"<(tool_call|tool_response|function_call)>")

Turn = tuple[str, str, str]
"""Writer, role (empty: none is marked), and text with its marks."""


def turns_of(sample: Mapping[str, Any]) -> list[Turn]:
    """Return the turns of a recorded sample, whose texts together are the prompt and the response.

    A part of a policy or an environment is never merged with another's, whatever its text looks like: a mark that a
    policy wrote begins a turn of the policy.
    """
    prompt, response = sample.get("prompt"), sample.get("response")
    turns = list(_split(PROMPT, prompt)) if isinstance(prompt, str) else []
    pieces = pieces_of(sample) or ([(POLICY, response)] if isinstance(response, str) else [])
    for writer, text in pieces:
        turns += _split(writer, text)
    return turns


def pieces_of(sample: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return writer and text of each part of a recorded response; empty where the policy wrote it all."""
    parts = sample.get("parts")
    pairs = parts if isinstance(parts, list) else []
    return [
        (pair[0] if pair[0] in (POLICY, ENVIRONMENT) else ENVIRONMENT, pair[1])
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, str) for each in pair)
    ]


def _split(writer: str, text: str) -> Iterator[Turn]:
    """Yield the turns of a piece: a new one at each mark."""
    place, role = 0, ""
    for mark in _MARKS.finditer(text):
        if mark.start() > place:
            yield writer, _tool_role(role, text[place : mark.start()]), text[place : mark.start()]
        place, role = mark.start(), mark[mark.lastgroup or 0]
    if text[place:]:
        yield writer, _tool_role(role, text[place:]), text[place:]


def _tool_role(role: str, text: str) -> str:
    """Return the role with the tools in it: families mark calls and answers of tools within other roles' turns."""
    found = {mark[1] for mark in _TOOLS.finditer(text[:100_000])}
    if role == "system":  # it explains the marks to the policy
        return role
    if "tool_response" in found:
        return "tool"
    called = found & {"tool_call", "function_call"}
    return f"{role} + tool call".removeprefix(" + ") if called else role
