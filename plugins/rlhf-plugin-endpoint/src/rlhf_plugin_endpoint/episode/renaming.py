"""Ids of tool calls that a client rewrote: with other ids, each for one of ours, a conversation is the same.

Some agents add a prefix, others give calls ids of their own. Templates write ids, or refuse those of another form, and
the identity of a message has them; so they are put back before a request is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rlhf_core.contracts import Message

from ..dialects.model_request import ModelRequest
from .calls import SampledCall
from .identity import start_of, with_message


class CallNames:
    """The ids that an episode's answers gave to their tool calls."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._calls: dict[bytes, list[SampledCall]] = {}
        """Answers with tool calls, under the digest of the conversation in which ids are numbers."""

    def add(self, request: ModelRequest, call: SampledCall) -> None:
        """Remember the ids of an answer to a request's conversation."""
        if ids := _ids(call.message):
            self._given.update(ids)
            *_, digest = _digests(request, [*request.messages, call.message])
            self._calls.setdefault(digest, []).append(call)

    def put_back(self, request: ModelRequest) -> ModelRequest:
        """Return a request with our ids in place of those that its client wrote for them."""
        theirs = {each for message in request.messages for each in _ids(message)} - self._given
        if not theirs or not self._given:
            return request
        # Another prefix alone, as that of a dialect.
        names = {each: _bare(each) for each in theirs if _bare(each) in self._given}
        if len(names) < len(theirs):
            names |= self._matched(request)
        if not names:
            return request
        messages = _with_names(request.messages, lambda name: names.get(name, name))
        return replace(request, messages=tuple(messages))

    def _matched(self, request: ModelRequest) -> dict[str, str]:
        """Return our id for each of the request's, by the answers that its conversation holds but for their ids."""
        names: dict[str, str] = {}
        for message, digest in zip(
            request.messages, _digests(request, request.messages), strict=True
        ):
            ids = _ids(message)
            if not ids or digest not in self._calls:
                continue
            # Of parallel answers that are equal, the one whose ids are left in the client's.
            call = min(
                self._calls[digest],
                key=lambda one: (
                    not all(ours in his for ours, his in zip(_ids(one.message), ids, strict=True)),
                    one.place,
                ),
            )
            names |= dict(zip(ids, _ids(call.message), strict=True))
        return names


def _digests(request: ModelRequest, messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield the digest of the conversation up to each message, with ids as numbers and without thoughts."""
    numbers: dict[str, str] = {}
    digest = start_of(request.tools, request.template_kwargs)
    for message in _with_names(messages, lambda name: numbers.setdefault(name, str(len(numbers)))):
        digest = with_message(digest, message, reasoning=False)
        yield digest


def _with_names(messages: Sequence[Message], name_of: Callable[[str], str]) -> Iterator[Message]:
    for message in messages:
        changed: Mapping[str, object] = message
        if calls := message.get("tool_calls"):
            named = [{**call, "id": name_of(call["id"])} for call in calls]
            changed = {**message, "tool_calls": named}
        elif message.get("tool_call_id"):
            changed = {**message, "tool_call_id": name_of(message["tool_call_id"])}
        yield changed


def _ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def _bare(name: str) -> str:
    return name.rpartition("_")[2]
