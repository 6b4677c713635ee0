"""Forks of an episode, and what its client did to cause each: the request is compared with the conversations before.

A fork costs a row of its own, which reads again what the path before it holds. Some are meant, such as a compacted
history; most are a client's habit that nobody knows of.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rlhf_core import DataError
from rlhf_core.contracts import Message, Renderer, Stop

from ..dialects.model_request import ModelRequest
from .calls import ModelInput, SampledCall
from .identity import start_of, with_message

COMPARED = 8
"""Number of the last conversations that a request is compared with."""
SHOWN = 60
"""Characters of a text that a message shows."""


class ForkCause(StrEnum):
    """Cause of a fork: what did not come back as it was. The value goes on with "the client"."""

    CALL_IDS = "renamed ids of tool calls"
    ANSWER = "rewrote an earlier answer"
    THOUGHT = "left out what an earlier answer thought"
    DROPPED = "dropped earlier messages"
    OTHER = "changed an earlier message that is no answer"
    TOOLS = "changed the tools or the variables of the chat template"
    SPECIAL = "changed nothing, and the policy wrote special tokens, which the text of an answer does not have"
    TEMPLATE = "changed nothing, and the chat template shows earlier turns otherwise than they were written"


class ComparedConversation(NamedTuple):
    """Messages of a request and their answer, with digests by which they are compared."""

    start: bytes
    messages: tuple[Message, ...]
    identities: tuple[bytes, ...]


class Forks:
    """Forks of one episode.

    An agent that begins a conversation of its own, a sub-agent for example, forks nothing.

    Args:
        renderer: tells which tokens of an answer its text does not have.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.causes: Counter[ForkCause] = Counter()
        self.examples: dict[ForkCause, str] = {}
        """The first request of each cause, in words."""
        self._before: deque[tuple[ModelRequest, SampledCall]] = deque(maxlen=COMPARED)

    def add(self, request: ModelRequest, call: SampledCall) -> None:
        """Remember the answer to a conversation."""
        if request.prompt is None:
            self._before.append((request, call))

    def look(self, request: ModelRequest, read: ModelInput) -> None:
        """Count a request that forks, with its cause."""
        if request.prompt is not None or not self._before:
            return
        known = 0 if read.parent is None else read.parent.num_messages + 1
        if known and all(each["role"] != "assistant" for each in request.messages[known:]):
            return
        asked = _conversation(request, request.messages)
        earlier = [_conversation(one, (*one.messages, call.message)) for one, call in self._before]
        # The last one of those that share most.
        place = max(reversed(range(len(earlier))), key=lambda at: _shared(earlier[at], asked))
        found = _cause(earlier[place], asked)
        if found is not None:
            cause, example = found
            if cause is ForkCause.TEMPLATE and (special := self._special(self._before[place][1])):
                cause, example = ForkCause.SPECIAL, f"{example}, {special!r}"
            self.causes[cause] += 1
            self.examples.setdefault(cause, example)

    def _special(self, call: SampledCall) -> str:
        """Return the first special token of an answer that is not what the template writes at its end, as text; empty
        where there is none, or where thoughts and tool calls have marks of their own."""
        if call.message.get("reasoning_content") or call.message.get("tool_calls"):
            return ""
        token_ids = call.completion.token_ids.tolist()
        if call.stop is Stop.EOS and token_ids[-1] in self._closing():
            token_ids = token_ids[:-1]
        each = [[token] for token in token_ids]
        shown = self._renderer.decode_batch(each, skip_special_tokens=False)
        plain = self._renderer.decode_batch(each)
        return next((one for one, other in zip(shown, plain, strict=True) if one and not other), "")

    def _closing(self) -> list[int]:
        """Return the template's tokens behind an answer, through the user's next words."""
        try:
            return self._renderer.render_next([{"role": "user", "content": ""}], ended=False)
        except DataError:  # a template without a chat, of which no answer goes on
            return []


def _conversation(request: ModelRequest, messages: Sequence[Message]) -> ComparedConversation:
    start = start_of(request.tools, request.template_kwargs)
    identities = tuple(with_message(b"", message) for message in messages)
    return ComparedConversation(start, tuple(messages), identities)


def _shared(before: ComparedConversation, asked: ComparedConversation) -> tuple[int, int]:
    """Return how many first messages are the same, and how many are anywhere, but for the system's."""
    said = [
        each
        for each, message in zip(before.identities, before.messages, strict=True)
        if message["role"] != "system"
    ]
    return _same_first(before, asked), len(set(said).intersection(asked.identities))


def _same_first(before: ComparedConversation, asked: ComparedConversation) -> int:
    pairs = zip(before.identities, asked.identities, strict=False)
    return next(
        (at for at, (ours, theirs) in enumerate(pairs) if ours != theirs),
        min(len(before.identities), len(asked.identities)),
    )


def _cause(
    before: ComparedConversation, asked: ComparedConversation
) -> tuple[ForkCause, str] | None:
    """Return why a request does not go on with a conversation, and an example; None: it is another conversation."""
    same, shared = _shared(before, asked)
    if same == len(before.identities):
        if before.start != asked.start:
            return ForkCause.TOOLS, f"behind message {same}"
        return ForkCause.TEMPLATE, f"behind message {same}"
    rest = asked.messages[same:]
    if not shared or all(message["role"] != "assistant" for message in rest):
        return None
    ours, theirs = before.messages[same], rest[0]
    example = f"message {same + 1}: {_shown(ours)} came back as {_shown(theirs)}"
    if asked.identities[same] in before.identities[same + 1 :]:
        return ForkCause.DROPPED, f"message {same + 1}, {_shown(ours)}, is gone"
    if ours["role"] != "assistant":
        return ForkCause.OTHER, example
    if theirs["role"] != "assistant":
        return ForkCause.DROPPED, f"message {same + 1}, {_shown(ours)}, is gone"
    if _bare(ours, ids=True) == _bare(theirs, ids=True):
        return ForkCause.THOUGHT, example
    if _bare(ours, ids=False) == _bare(theirs, ids=False):
        return ForkCause.CALL_IDS, example
    return ForkCause.ANSWER, example


def _bare(message: Message, *, ids: bool) -> bytes:
    """Return an answer's identity without its thought and, if so wanted, without the ids of its calls."""
    changed: dict[str, Any] = dict(message)
    if not ids and message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": ""} for call in message["tool_calls"]]
    return with_message(b"", changed, reasoning=False)


def _shown(message: Message) -> str:
    """Return a message in few words."""
    calls = message.get("tool_calls")
    said = message["content"] if message["content"] or not calls else list(calls)
    text = said if isinstance(said, str) else json.dumps(said, default=str)
    short = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return f"{message['role']} {short!r}"
