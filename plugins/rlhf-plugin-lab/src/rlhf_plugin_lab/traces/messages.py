"""Texts of a rollout as messages in OpenAI's form: what the policy read before each of its turns, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..recorded.turns import POLICY, PROMPT, pieces_of, turns_of

Message = dict[str, str]
"""``role`` and ``content``. Contents have the marks of the chat template, so that one after the other they are the text
that ``samples.jsonl`` has of what the policy read."""

_ROLES = {"model": "assistant", "observation": "tool", "function": "tool", "ipython": "tool"}
_KNOWN = {"system", "developer", "user", "assistant", "tool"}
_OF_PROMPTS_ALONE = {"system", "developer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTexts:
    """Texts around one turn of the policy."""

    read: list[Message]
    written: str


def turn_texts(sample: Mapping[str, Any]) -> list[TurnTexts]:
    """Return the texts of each turn of the policy in a recorded sample.

    What a policy wrote is a message of the assistant, and what an environment wrote none of the system, whatever marks
    they put into it.
    """
    prompt, response = sample.get("prompt"), sample.get("response")
    read = _messages({"prompt": prompt}) if isinstance(prompt, str) else []
    pieces = pieces_of(sample) or ([(POLICY, response)] if isinstance(response, str) else [])
    found = []
    for writer, text in pieces:
        if writer == POLICY:
            found.append(TurnTexts(read=list(read), written=unicode_of(text)))
            read.append({"role": "assistant", "content": unicode_of(text)})
        else:
            read += _messages({"parts": [[writer, text]]})
    return found


def unicode_of(text: str) -> str:
    """Return a text that is Unicode: half a surrogate pair, which JSON can have and UTF-8 cannot, is ``?``."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _messages(piece: Mapping[str, Any]) -> list[Message]:
    return [
        {"role": _role_of(writer, role), "content": unicode_of(text)}
        for writer, role, text in turns_of(piece)
    ]


def _role_of(writer: str, marked: str) -> str:
    """Return the role of a text that the policy did not write: the marked one, if it is one of OpenAI's."""
    name = marked.partition(" + ")[0]
    role = _ROLES.get(name, name)
    if role not in _KNOWN or (writer != PROMPT and role in _OF_PROMPTS_ALONE):
        return "user"
    return role
